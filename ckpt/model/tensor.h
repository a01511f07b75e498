// A tensor as the whole suite names it: canonical, unfused, unpadded, unsharded; and its roles.
//
// A ParameterSpec is one parameter of a model and how a topology cuts it. placement.h needs nothing else, so
// a model of an unknown architecture can be resharded too. A TensorEntry is one stored array: a parameter in
// one role. Names: FORMAT.md, "Canonical names". Linear weights are [out, in].
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
  kMaster = 2,    // fp32 copy that the optimizer updates if weights have 16 bits
  kExpAvg = 3,    // Adam's first moment
  kExpAvgSq = 4,  // Adam's second moment
  kRng = 5,       // opaque random state of one rank; only its own topology can use it; reshape copies it
  // States of other optimizers, by the names that torch.optim, transformers and Muon give them. Most have the
  // parameter's shape; kStep, kMuProduct, kEta and kMu are one number each, Adafactor's have a row or a
  // column.
  kStep = 6,            // updates of this parameter, if parameters differ
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
  // Values of a training that belong to no parameter.
  kJson = 25,      // uint8: UTF-8 text of one JSON value
  kPickle = 26,    // uint8: torch.save of a value that JSON cannot hold; nothing here unpickles it
  kTraining = 27,  // a tensor, for example of a dataloader
  // From here on: roles that have only a name (RoleNamed), numbered in the order this process met them.
  kFirstNamed = 64,
};

// "weight", "master", "exp_avg", "momentum_buffer", ...: the key of the state as its optimizer spells it; "?"
// for no Role.
std::string_view Name(Role role);
// A role with a number of its own. States of other systems are mapped to these alone.
std::optional<Role> ParseRole(std::string_view name);
// The role of any name: a known one, or a new one. Errors: InvalidArgument if the name has characters other
// than letters, digits and "_-.:", is longer than 64, or means something else in index.h5; or if there are
// more than 192 such roles.
Result<Role> RoleNamed(std::string_view name);
// All roles that this process knows; those without a number come last.
std::vector<Role> KnownRoles();
// True for state that belongs to no parameter and is copied whole: random states and other values of a
// training.
bool IsOpaque(Role role);
// True for state that an optimizer holds: neither a weight nor opaque.
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

// "layers.0.mlp.up.weight" for a weight; other roles follow: "layers.0.mlp.up.weight/exp_avg".
std::string DisplayName(const TensorEntry& entry);

// True if a glob of the command line matches the display name or the bare name: it selects one role or all.
bool FitsGlob(const TensorEntry& tensor, const std::string& glob);

}  // namespace cairn
