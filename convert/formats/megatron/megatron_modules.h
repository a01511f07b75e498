// The modules of a GPT as Megatron's programs hold them: their names, and the canonical modules that they are
// made of.
//
// How tensor parallelism cuts a module, and whether its rows are a vocabulary, is what is said of its
// canonical modules (ckpt/model/canonical_modules.h), and nowhere else.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ckpt/model/canonical_modules.h"

namespace cairn {

enum class MegatronPlace { kBeforeLayers, kInLayer, kAfterLayers };

struct MegatronModule {
  std::string_view name;  // of Megatron-LM and Megatron-DeepSpeed
  MegatronPlace place;
  std::vector<std::string_view>
      canonical;  // one; query, key and value; or gate and up, of which up may be alone

  // All modules of a fused matrix are cut alike.
  const CanonicalModule& cut_as() const { return *FindCanonicalModule(canonical[0]); }
  bool is_qkv() const { return canonical.size() == 3; }
  bool is_gate_up() const { return canonical.size() == 2; }
  bool is_vocabulary() const { return cut_as().out == Extent::kVocab; }
};

// In the order in which the programs register them.
std::span<const MegatronModule> MegatronModules();

// The module of a stored name, whichever program and version it is of: "self_attention.linear_qkv". Null
// if there is none.
const MegatronModule* FindMegatronModule(std::string_view stored);

}  // namespace cairn
