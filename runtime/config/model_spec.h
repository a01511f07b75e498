// The model that is trained: the choices of its architecture, from the flags or from a checkpoint.
//
// The layers (runtime/model) are built from a ModelSpec and know no flags. Its parameters follow from it
// (ckpt/model/canonical_modules.h), and so does the `model` in a checkpoint's manifest.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/model/model.h"
#include "runtime/config/rope_scaling.h"
#include "runtime/config/train_config.h"

namespace cairn {

struct ParameterSpec;

enum class Normalization { kLayerNorm, kRmsNorm };
enum class Position { kLearned, kRotary, kAlibi, kNone };
enum class Activation { kGelu, kGeluTanh, kRelu, kSquaredRelu, kSilu, kLinear };

// The names of the choices, as a manifest's `model` spells them.
std::string_view NameOf(Normalization normalization);
std::string_view NameOf(Position position);
std::string_view NameOf(Activation activation);
// `where` it was given: "--activation". Errors: NotSupported naming the known ones.
Result<Normalization> NormalizationNamed(std::string_view name, std::string_view where);
Result<Position> PositionNamed(std::string_view name, std::string_view where);
Result<Activation> ActivationNamed(std::string_view name, std::string_view where);

// For Position::kRotary.
struct RotarySpec {
  double base = 10000;
  double percent = 1;        // of a head that rotates
  bool interleaved = false;  // pairs are neighbours; else halves of what rotates
  RopeScaling scaling;
  std::string scaling_json;  // the same as it was stated; empty: none
  bool operator==(const RotarySpec&) const = default;
};

struct ModelSpec {
  ModelShape shape;
  Normalization normalization = Normalization::kLayerNorm;
  double norm_epsilon = 1e-5;
  Position position = Position::kLearned;
  RotarySpec rotary;
  Activation activation = Activation::kGeluTanh;  // of a gated MLP: of the gate
  bool parallel_residual = false;                 // attention and MLP read the same input
  bool residual_behind_norm = false;              // what is added to a block's output is its normed input

  double attention_scale = 0;             // of query times key; 0: 1 / sqrt(head)
  bool attention_scale_by_layer = false;  // divided by the layer's number, from 1
  int64_t window = 0;                     // keys that a query sees, its own among them; 0: all
  std::vector<bool> windowed;             // of each layer; empty: all of them
  bool operator==(const ModelSpec&) const = default;

  int64_t WindowOf(int layer) const { return windowed.empty() || windowed[layer] ? window : 0; }
  // Pairs of elements of a head that rotary positions turn.
  int64_t RotatedPairs() const { return static_cast<int64_t>(double(shape.HeadDim()) * rotary.percent) / 2; }
};

// Errors: InvalidArgument or NotSupported naming the flags that do not fit.
Result<ModelSpec> SpecOfFlags(const TrainConfig& config);

// The checkpoint's model if it was taken from one (checkpoint_model.h), else that of the flags.
// Requires a validated config.
ModelSpec SpecOf(const TrainConfig& config);

// What a manifest says of `spec`.
Model FactsOf(const ModelSpec& spec);

// The shape of the trained model, with the sequence length and the padding of the vocabulary that the flags
// set. Requires a validated config.
ModelShape ShapeOf(const TrainConfig& config);

// The parameters of the model, in the order of the flat buffer. Requires a validated config.
std::vector<ParameterSpec> GptSpecs(const TrainConfig& config);

// `model` in the manifests of this training (ckpt/FORMAT.md, "Model"); for a model that was taken from a
// checkpoint, that of the checkpoint.
Model ModelFacts(const TrainConfig& config);

// Parameters of the model, the vocabulary unpadded, tied weights counted once.
uint64_t CountParameters(const std::vector<ParameterSpec>& specs);

}  // namespace cairn
