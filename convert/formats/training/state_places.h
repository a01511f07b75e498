// Which states of an optimizer a format has a place for: a row of each format, and the one function that fits
// a training's tensors to it. All formats call a state by its role's name; only masters have names of their
// own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/formats/training/training_tensors.h"

namespace cairn {

struct TrainingState;

inline constexpr Role kAdamStates[] = {Role::kExpAvg, Role::kExpAvgSq};

enum class Steps { kOne, kOfEach };  // numbers of updates that a format holds

// A state without a place is refused by name, or left out by name if the user allows it.
struct StatePlaces {
  std::string_view master;          // what it calls a master
  std::span<const Role> only = {};  // empty: a state of any name
  bool any_shape = false;           // else a state has its parameter's shape
  bool any_type = false;            // else masters and states are fp32
  Steps steps = Steps::kOne;
  std::string_view elsewhere = "dcp and native";  // hold the others

  std::string_view NameOf(const Role& role) const { return role == Role::kMaster ? master : Name(role); }
};

inline constexpr StatePlaces kDcpPlaces{
    .master = "master_param", .any_shape = true, .any_type = true, .steps = Steps::kOfEach};
inline constexpr StatePlaces kZeroPlaces{.master = "fp32"};
// Megatron's optimizers: torch_dist and the others; of each, the distributed one, which is for Adam.
inline constexpr StatePlaces kTorchDistPlaces{.master = "fp32_param", .any_type = true};
inline constexpr StatePlaces kMegatronPlaces{.master = "fp32_from_fp16_params"};
inline constexpr StatePlaces kShardedTorchDistPlaces{
    .master = "param", .only = kAdamStates, .any_type = true, .elsewhere = "--zero 0, dcp and native"};
inline constexpr StatePlaces kBufferPlaces{
    .master = "param", .only = kAdamStates, .elsewhere = "--zero 0, dcp and native"};

// The role of the state that an optimizer keeps under `key`, which may be a path: one with a number, or one
// that has only the name. Nothing if `key` cannot be a state's.
std::optional<Role> StateRole(std::string_view key);

// Leaves out the states and steps that have no place, if that is allowed, and masters of parameters without
// states, for which no format has a place; a note of `state` names them. Errors: NotSupported naming the
// first state and why it has no place, or if no file has the number of updates that Adam's moments need.
Status FitStates(const StatePlaces& places, bool allowed, TrainingTensors& tensors, TrainingState& state);

// In files that have the states of one optimizer: names a state that a parameter lost, since another one has
// all that it has, and more.
std::optional<std::pair<std::string, Role>> LostState(
    const std::map<std::string, std::set<Role>, std::less<>>& states);

}  // namespace cairn
