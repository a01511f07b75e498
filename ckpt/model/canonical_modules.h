// The canonical modules of FORMAT.md, "Canonical names": their shapes, and how a topology cuts them.
#pragma once

#include <string_view>
#include <vector>

#include "ckpt/model/shape.h"
#include "ckpt/model/tensor.h"

namespace cairn {

enum class Extent {
  kHidden,
  kTwoHidden,
  kQuery,
  kKeyValue,
  kHead,
  kHeads,
  kValues,
  kQueryRank,
  kKeyValueDown,
  kKeyValueRank,
  kKeyValueUp,
  kFfn,
  kVocab,
  kPositions,
  kPositionOffset,
  kExperts,
  kExpertFfn,
  kSharedFfn,
  kOne
};

struct CanonicalModule {
  std::string_view name;
  std::vector<Extent> extents;  // of its weight; a bias has no last one, unless the weight is a vector
  std::vector<Cut> cuts = {};   // of its weight; their units and padding follow from the extents
  int place = 0;                // kBeforeLayers, kAfterLayers, or 0: in the layers
  bool fused = false;           // in memory one matrix with the module before it
  bool keeps_type = false;      // no conversion casts it

  // The experts of a layer are one tensor: the first dimension counts them.
  bool of_experts() const { return !cuts.empty() && cuts[0].axis == Axis::kEp; }
  bool is_vocabulary() const { return extents[0] == Extent::kVocab; }
};

// Begins the names of parameters in layers: "layers.3.mlp.up.weight"; and in those of multi-token prediction,
// which are counted from 0 again: "mtp.0.mlp.up.weight".
inline constexpr std::string_view kInLayers = "layers.", kInMtp = "mtp.";

// Takes "layers.3." or "mtp.0." off a name and returns the first part: "layers." or "mtp."; "" if there is
// none.
std::string_view TakeLayer(std::string_view& name, uint64_t& number);

// In the order of the trainer's flat buffer (placement.h).
const std::vector<CanonicalModule>& CanonicalModules();

// Null if no module has this name.
const CanonicalModule* FindCanonicalModule(std::string_view name);

// That of a parameter's canonical name; null if it has none.
const CanonicalModule* ModuleOfParameter(std::string_view name);

uint64_t SizeOf(Extent extent, const ModelShape& shape);

// The weight or the bias of a module, in `layer` if its place is in the layers. A layer of multi-token
// prediction (ModelShape::IsMtp) lies where the modules after the layers do.
ParameterSpec SpecOf(const CanonicalModule& module, bool bias, int layer, const ModelShape& shape);

}  // namespace cairn
