// The canonical modules of FORMAT.md, "Canonical names": their shapes, and how a topology cuts them.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ckpt/model/shape.h"
#include "ckpt/model/tensor.h"

namespace cairn {

// The size of a dimension.
using ModelSize = int64_t (*)(const ModelShape& shape);
struct ModelSizes {
  static int64_t One(const ModelShape&) { return 1; }
  static int64_t Hidden(const ModelShape& s) { return s.hidden; }
  static int64_t TwoHidden(const ModelShape& s) { return 2 * s.hidden; }
  static int64_t Query(const ModelShape& s) { return s.QueryWidth(); }
  static int64_t KeyValue(const ModelShape& s) { return s.KeyValueWidth(); }
  static int64_t Head(const ModelShape& s) { return s.HeadDim(); }
  static int64_t Heads(const ModelShape& s) { return s.heads; }
  static int64_t Values(const ModelShape& s) { return s.heads * s.ValueHeadDim(); }
  static int64_t QueryRank(const ModelShape& s) { return s.query_rank; }
  static int64_t KeyValueDown(const ModelShape& s) { return s.key_value_rank + s.rotated_dim; }
  static int64_t KeyValueRank(const ModelShape& s) { return s.key_value_rank; }
  static int64_t KeyValueUp(const ModelShape& s) { return s.heads * s.KeyValueUpDim(); }
  static int64_t DeltaKeys(const ModelShape& s) { return s.delta_key_heads * s.delta_key_dim; }
  static int64_t DeltaValues(const ModelShape& s) { return s.delta_value_heads * s.delta_value_dim; }
  static int64_t DeltaHeads(const ModelShape& s) { return s.delta_value_heads; }
  static int64_t DeltaHead(const ModelShape& s) { return s.delta_value_dim; }
  static int64_t Convolution(const ModelShape& s) { return s.convolution; }
  static int64_t Ffn(const ModelShape& s) { return s.Ffn(); }
  static int64_t Vocab(const ModelShape& s) { return s.vocab; }
  static int64_t Positions(const ModelShape& s) { return s.Positions(); }
  static int64_t PositionOffset(const ModelShape&) { return 2; }  // rows before OPT's first position
  static int64_t Experts(const ModelShape& s) { return s.experts; }
  static int64_t ExpertFfn(const ModelShape& s) { return s.expert_ffn; }
  static int64_t SharedFfn(const ModelShape& s) { return s.shared_ffn; }
};

struct CanonicalModule {
  std::string_view name;
  std::vector<ModelSize> extents;  // of its weight; a bias has no last one, unless the weight is a vector
  std::vector<Cut> cuts = {};      // of its weight; their units and padding follow from the extents
  int place = 0;                   // kBeforeLayers, kAfterLayers, or 0: in the layers
  bool fused = false;              // in memory one matrix with the module before it
  bool keeps_type = false;         // no conversion casts it

  // The experts of a layer are one tensor: the first dimension counts them.
  bool of_experts() const { return !cuts.empty() && cuts[0].axis == Axis::kEp; }
  bool is_vocabulary() const { return extents[0] == ModelSizes::Vocab; }
};

// Begins the names of parameters in layers: "layers.3.mlp.up.weight"; and in those of multi-token prediction,
// which are counted from 0 again: "mtp.0.mlp.up.weight".
inline constexpr std::string_view kInLayers = "layers.", kInMtp = "mtp.";

// Takes "layers.3." or "mtp.0." off a name and returns the first part: "layers." or "mtp."; "" if there is
// none.
std::string_view TakeLayer(std::string_view& name, uint64_t& number);

// In the order of the trainer's flat buffer (placement.h).
std::span<const CanonicalModule> CanonicalModules();

// Null if no module has this name.
const CanonicalModule* FindCanonicalModule(std::string_view name);

// That of a parameter's canonical name; null if it has none.
const CanonicalModule* ModuleOfParameter(std::string_view name);

// The weight or the bias of a module, in `layer` if its place is in the layers. A layer of multi-token
// prediction (ModelShape::IsMtp) lies where the modules after the layers do.
ParameterSpec SpecOf(const CanonicalModule& module, bool bias, int layer, const ModelShape& shape);

// The parts of a decoder, in the order of its parameters: kBeforeLayers, each layer, kAfterLayers, and each
// layer of multi-token prediction.
std::vector<int> PartsOf(const ModelShape& shape);
// CanonicalModule::place of the modules of a part.
inline int PlaceOf(int part) { return IsInLayers(part) ? 0 : part; }
// The modules of a part, without the output layer.
ModuleSet ModulesOf(const ModelShape& shape, int part);

// The parameters of a decoder, in the order of the trainer's flat buffer (placement.h). Query, key and value
// follow each other, weights before biases, and so do gate and up; each group is therefore one fused matrix
// in memory.
std::vector<ParameterSpec> GptSpecs(const ModelShape& shape);

}  // namespace cairn
