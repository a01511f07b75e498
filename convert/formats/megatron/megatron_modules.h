// The modules of a GPT as Megatron's programs hold them: their names, the canonical modules that they are
// made of, and which box of which parameter a rank's slice of one holds. Readers and writers share it.
//
// How tensor parallelism cuts a module, and whether its rows are a vocabulary, is what is said of its
// canonical modules (ckpt/model/canonical_modules.h), and nowhere else.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/model/canonical_modules.h"
#include "ckpt/model/slice.h"

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
  bool is_vocabulary() const { return cut_as().is_vocabulary(); }
};

// In the order in which the programs register them.
std::span<const MegatronModule> MegatronModules();

// True for a layer's number, false for kBeforeLayers and kAfterLayers.
inline bool IsInLayers(int layer) { return layer != kBeforeLayers && layer != kAfterLayers; }

// "layers.3.mlp.up.weight"
std::string CanonicalName(std::string_view canonical, bool bias, int layer);

struct MegatronParameter {
  const MegatronModule* module = nullptr;
  bool bias = false;
};

// The module of a stored weight or bias, whichever program and version it is of:
// "self_attention.linear_qkv.weight". Its module is null if the name has none.
MegatronParameter FindMegatronParameter(std::string_view stored);

// How a rank's slices are made.
struct MegatronCut {
  ModelShape shape;
  Topology topology = {};  // its ranks
  bool gate_last = false;  // BigScience's GLU: up * act(gate)
  double qkv_version = 3;  // checkpoint_version
};

// A box of a parameter inside a slice.
struct SlicePart : BoxMap {
  size_t canonical = 0;  // into the module's
  Dims whole;            // the parameter's shape
};

// The parts of the slice, of shape `slice`, that rank `rank` has; one is empty if the rank
// has rows of padding alone. Errors, with `name` of the slice: Corrupt if the shape contradicts the sizes;
// NotSupported for a cut that cannot be read.
Result<std::vector<SlicePart>> PartsOfSlice(std::string_view name, const MegatronParameter& parameter,
                                            const Dims& slice, const MegatronCut& cut, int rank);

}  // namespace cairn
