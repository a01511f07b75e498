// The canonical modules of FORMAT.md, "Canonical names": their shapes, and how a topology cuts them.
#pragma once

#include <string_view>

#include "ckpt/model/tensor.h"

namespace cairn {

// The sizes that shapes are made of.
struct ModelSizes {
  uint64_t layers = 0;
  uint64_t hidden = 0;
  uint64_t heads = 0;            // of queries
  uint64_t key_value_heads = 0;  // divides heads
  uint64_t head = 0;             // elements of one
  uint64_t ffn = 0;
  uint64_t vocab = 0;      // true, without padding
  uint64_t positions = 0;  // of learned position embeddings; 0: none
  bool operator==(const ModelSizes&) const = default;
};

enum class Extent { kNone, kHidden, kQuery, kKeyValue, kHead, kFfn, kVocab, kPositions, kPositionOffset };
enum class Cut { kNone, kRows, kColumns };  // across tensor parallel ranks; a bias is cut as its rows are

struct CanonicalModule {
  std::string_view name;
  Extent out;
  Extent in;  // kNone: the weight is a vector
  Cut cut = Cut::kNone;
};

// Null where there is none of this name.
const CanonicalModule* FindCanonicalModule(std::string_view name);

uint64_t SizeOf(Extent extent, const ModelSizes& sizes);

// The dimension of its weight or bias that tensor parallelism cuts: 0, 1 or kReplicated.
int CutDim(const CanonicalModule& module, bool bias);
// Whether that cut falls between heads.
bool CutsHeads(const CanonicalModule& module);

// The weight or the bias of a module, in `layer` (or kBeforeLayers, kAfterLayers).
ParameterSpec SpecOf(const CanonicalModule& module, bool bias, int layer, const ModelSizes& sizes);

}  // namespace cairn
