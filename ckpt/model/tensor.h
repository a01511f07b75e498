// A tensor as the whole suite names it: canonical, unfused, unpadded, unsharded; and what each role of it
// holds.
//
// A ParameterSpec is one parameter of a model with how a topology cuts it; it is all that placement.h needs,
// so that a model whose architecture no table knows still reshapes. A TensorEntry is one stored array: a
// parameter in one role. Names: FORMAT.md, "Canonical names". Linear weights are [out, in].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/box.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/status.h"

namespace cairn {

enum class Role : uint8_t {
  kWeight = 1,    // what forward and backward use
  kMaster = 2,    // fp32 copy that the optimizer updates, where weights are 16 bits
  kExpAvg = 3,    // Adam's first moment
  kExpAvgSq = 4,  // Adam's second moment
  kRng = 5,  // opaque random state of one rank; meaningful on its own topology only, carried along by reshape
  // States of other optimizers, by the names that torch.optim, transformers and Muon give them. Most have the
  // parameter's shape; kStep, kMuProduct, kEta and kMu are one number each, Adafactor's have a row or a
  // column.
  kStep = 6,            // updates of this parameter, where parameters differ
  kMaxExpAvgSq = 7,     // amsgrad
  kMomentumBuffer = 8,  // SGD, RMSprop, Muon
  kSquareAvg = 9,       // RMSprop, Adadelta
  kGradAvg = 10,        // RMSprop, centered
  kAccDelta = 11,       // Adadelta
  kSum = 12,            // Adagrad
  kExpInf = 13,         // Adamax
  kMuProduct = 14,      // NAdam
  kPrev = 15,           // Rprop
  kStepSize = 16,       // Rprop
  kEta = 17,            // ASGD
  kMu = 18,             // ASGD
  kAx = 19,             // ASGD
  kExpAvgSqRow = 20,    // Adafactor
  kExpAvgSqCol = 21,    // Adafactor
  kRowVariance = 22,    // Adafactor of torch.optim
  kColVariance = 23,    // Adafactor of torch.optim
  kVariance = 24,       // Adafactor of torch.optim
  // What a training's state has beside its parameters' tensors.
  kJson = 25,      // uint8: UTF-8 text of one JSON value
  kPickle = 26,    // uint8: torch.save of what JSON cannot say; nothing here unpickles it
  kTraining = 27,  // a tensor: of a dataloader, say
  // From here on: roles that only their names tell (RoleNamed), numbered as this process met them.
  kFirstNamed = 64,
};

// "weight", "master", "exp_avg", "momentum_buffer", ...: the key of the state as its optimizer spells it; "?"
// for no Role.
std::string_view Name(Role role);
// A role that has a number: what other systems' states are held to.
std::optional<Role> ParseRole(std::string_view name);
// The role of any name: that of a known one, else one of its own. Errors: InvalidArgument where the name has
// other characters than letters, digits and "_-.:", more than 64 of them, or means something else in
// index.h5; or where there are more than 192 such roles.
Result<Role> RoleNamed(std::string_view name);
// All that this process knows, those of names last.
std::vector<Role> KnownRoles();
// Whether it is no state of a parameter, but one that is carried along whole: random states and what a
// training has beside its parameters.
bool IsOpaque(Role role);
// Whether an optimizer holds it beside the weights: all but weights and what is opaque.
bool IsOptimizerState(Role role);

inline constexpr int kReplicated = -1;
inline constexpr int kBeforeLayers = -1;        // on the first stage: embeddings
inline constexpr int kAfterLayers = INT32_MAX;  // on the last stage: final norm, output head

struct ParameterSpec {
  std::string name;          // canonical: "layers.3.mlp.up.weight"
  Dims shape;                // global, the vocabulary at its true size
  int tp_dim = kReplicated;  // dimension cut across tensor parallel ranks
  uint64_t tp_unit = 1;      // cuts fall on multiples of this many elements (head size for q, k, v)
  uint64_t pad_multiple =
      0;  // >0: tp_dim is padded in memory to a multiple of pad_multiple * tp (vocabulary)
  int layer = kBeforeLayers;  // transformer layer, kBeforeLayers or kAfterLayers
  bool tied_to_last = false;  // the last stage holds a copy too (tied embedding); the first one writes it
  bool operator==(const ParameterSpec&) const = default;
};

// One array of the checkpoint. Its identity is (parameter name, role).
struct TensorEntry {
  ParameterSpec spec;
  Role role = Role::kWeight;
  Dtype dtype = Dtype::kF32;
  bool operator==(const TensorEntry&) const = default;

  uint64_t bytes() const { return spec.shape.Volume() * SizeOf(dtype); }
};

// "layers.0.mlp.up.weight" for a weight, with "/master", "/exp_avg" or "/exp_avg_sq" behind for the others.
std::string DisplayName(const TensorEntry& entry);

}  // namespace cairn
