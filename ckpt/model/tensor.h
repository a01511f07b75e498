// A tensor as the whole suite names it: canonical, unfused, unpadded, unsharded; and its roles.
//
// A ParameterSpec is one parameter of a model and how a topology cuts it. slice.h and placement.h need
// nothing else, so a model of an unknown architecture can be resharded too. A TensorEntry is one stored
// array: a parameter in one role. Names: FORMAT.md, "Canonical names". Linear weights are [out, in].
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/box.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/status.h"
#include "ckpt/model/topology.h"

namespace cairn {

// A role is a value with a name. The roles below also have a number, by which files store them; any other
// role (RoleNamed) has only its name.
class Role {
 public:
  static constexpr size_t kMaxNameBytes = 64;
  constexpr Role() = default;                                     // no role: "?"
  constexpr explicit Role(uint8_t number) : bytes_{0, number} {}  // "?" if no role has the number
  static const Role kWeight;                                      // what forward and backward use
  static const Role kMaster;    // fp32 copy that the optimizer updates if weights have 16 bits
  static const Role kExpAvg;    // Adam's first moment
  static const Role kExpAvgSq;  // Adam's second moment
  static const Role
      kRng;  // opaque random state of one rank; only its own topology can use it; reshape copies it
  // States of other optimizers that code treats apart; tensor.cc lists all. Most have the parameter's shape;
  // kStep and kMuProduct are one number each, Adafactor's have a row or a column.
  static const Role kStep;            // updates of this parameter, if parameters differ
  static const Role kMaxExpAvgSq;     // amsgrad
  static const Role kMomentumBuffer;  // SGD, RMSprop, Muon
  static const Role kMuProduct;       // NAdam
  // Values of a training that belong to no parameter.
  static const Role kJson;    // uint8: UTF-8 text of one JSON value
  static const Role kPickle;  // uint8: torch.save of a value that JSON cannot hold; nothing here unpickles it
  static const Role kTraining;  // a tensor, for example of a dataloader

  constexpr bool has_number() const { return bytes_[0] == 0; }
  constexpr uint8_t number() const { return bytes_[1]; }    // if it has one
  constexpr auto operator<=>(const Role&) const = default;  // roles without a number come last, by name

 private:
  friend std::string_view Name(const Role& role);
  friend Result<Role> RoleNamed(std::string_view name);
  std::array<uint8_t, kMaxNameBytes> bytes_{};  // 0 and the number, or the name
};
inline constexpr Role Role::kWeight{1};
inline constexpr Role Role::kMaster{2};
inline constexpr Role Role::kExpAvg{3};
inline constexpr Role Role::kExpAvgSq{4};
inline constexpr Role Role::kRng{5};
inline constexpr Role Role::kStep{6};
inline constexpr Role Role::kMaxExpAvgSq{7};
inline constexpr Role Role::kMomentumBuffer{8};
inline constexpr Role Role::kMuProduct{14};
inline constexpr Role Role::kJson{25};
inline constexpr Role Role::kPickle{26};
inline constexpr Role Role::kTraining{27};

// "weight", "master", "exp_avg", "momentum_buffer", ...: the key of the state as its optimizer spells it; "?"
// for no Role.
std::string_view Name(const Role& role);
// A role with a number of its own. States of other systems are mapped to these alone.
std::optional<Role> ParseRole(std::string_view name);
// The role of any name: one with a number, or one that has only the name. Errors: InvalidArgument if the name
// has characters other than letters, digits and "_-.:", is longer than 64, or means something else in
// index.h5.
Result<Role> RoleNamed(std::string_view name);
// True for state that belongs to no parameter and is copied whole: random states and other values of a
// training.
bool IsOpaque(Role role);
// True for state that an optimizer holds: neither a weight nor opaque.
bool IsOptimizerState(Role role);

// A dimension of a parameter that is divided equally over the ranks of an axis.
struct Cut {
  Axis axis = Axis::kTp;
  int8_t dim = 0;
  uint64_t unit = 1;  // the cut falls on multiples of this (head size for q, k, v)
  uint64_t pad = 0;   // >0: in memory, the dimension is padded to a multiple of pad * ranks (vocabulary)
  bool operator==(const Cut&) const = default;
};

inline constexpr int kBeforeLayers = -1;        // on the first stage: embeddings
inline constexpr int kAfterLayers = INT32_MAX;  // on the last stage: final norm, output head
// True for a layer's number.
inline bool IsInLayers(int layer) { return layer != kBeforeLayers && layer != kAfterLayers; }

struct ParameterSpec {
  std::string name;            // canonical: "layers.3.mlp.up.weight"
  Dims shape;                  // global, the vocabulary at its true size
  std::vector<Cut> cuts = {};  // of different dimensions; slice.h says which part a rank has
  int layer = kBeforeLayers;   // transformer layer, kBeforeLayers or kAfterLayers
  bool tied_to_last = false;   // the last stage holds a copy too (tied embedding); the first one writes it
  bool of_experts = false;     // dimension 0 counts experts; it is spread over the axes of experts
  bool operator==(const ParameterSpec&) const = default;

  // A matrix, or a stack of them: what optimizers decay. A vector, or a stack of vectors, is not one.
  bool is_matrix() const { return shape.rank() - (of_experts ? 1 : 0) > 1; }
  // The axes that can cut it.
  std::span<const Axis> axes() const { return of_experts ? std::span<const Axis>(kExpertAxes) : kDenseAxes; }
  // True if it is cut by tensor parallelism at most, as in a dense model.
  bool is_dense() const {
    return !of_experts && cuts.size() <= 1 && (cuts.empty() || cuts[0].axis == Axis::kTp);
  }
  // Null if it is not padded.
  const Cut* padded() const;
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
