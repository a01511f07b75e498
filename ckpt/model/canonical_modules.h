// The canonical modules of FORMAT.md, "Canonical names": their shapes, and how a topology cuts them.
#pragma once

#include <string_view>

#include "ckpt/model/shape.h"
#include "ckpt/model/tensor.h"

namespace cairn {

enum class Extent { kNone, kHidden, kQuery, kKeyValue, kHead, kFfn, kVocab, kPositions, kPositionOffset };
enum class Cut { kNone, kRows, kColumns };  // across tensor parallel ranks; a bias is cut as its rows are

struct CanonicalModule {
  std::string_view name;
  Extent out;
  Extent in;  // kNone: the weight is a vector
  Cut cut = Cut::kNone;
};

// Null if no module has this name.
const CanonicalModule* FindCanonicalModule(std::string_view name);

uint64_t SizeOf(Extent extent, const ModelShape& shape);

// The dimension of its weight or bias that tensor parallelism cuts: 0, 1 or kReplicated.
int CutDim(const CanonicalModule& module, bool bias);
// True if that cut falls between heads.
bool CutsHeads(const CanonicalModule& module);

// The weight or the bias of a module, in `layer` (or kBeforeLayers, kAfterLayers).
ParameterSpec SpecOf(const CanonicalModule& module, bool bias, int layer, const ModelShape& shape);

}  // namespace cairn
