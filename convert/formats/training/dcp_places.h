// Tells from its name what each tensor of a state dict is: a parameter, an optimizer's state of one, or a
// number that says how far a training was.
//
// Names are torch.distributed.checkpoint's: the parts of the path in the state dict, joined by dots.
// Source: torch 2.11, torch/distributed/checkpoint/state_dict.py and _nested_dict.py.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/model/tensor.h"

namespace cairn {

struct DcpName {
  std::string name;
  std::vector<std::string> path;  // as the planner unflattens it; empty if it did not flatten
  int rank = 0;                   // dimensions of the tensor
};

struct DcpPlace {
  std::string parameter;
  std::optional<Role> role = Role::kWeight;  // nothing: a state of no known optimizer, or of the training
  bool training = false;                     // how far a training was: belongs to neither model nor optimizer
  std::optional<std::string> optimizer = {};  // of a state: the text before "state." in its name
};

// The form that a program gave its state dict, so that it gets the same one back: the keys above the names of
// the weights and above the optimizer's, whether torch flattened the optimizer
// (flatten_optimizer_state_dict), and which states have dots in one key: dots of others are keys below keys.
// dcp.save({"model": ..., "optimizer": ...}) has the default.
struct DcpForm {
  using Keys = std::vector<std::string>;
  Keys weights = {"model"}, optimizer = {"optimizer"}, dotted = {};
  bool flat = false;
  bool operator==(const DcpForm&) const = default;

  Keys Weight(const std::string& name) const;
  Keys State(const std::string& name, std::string_view state) const;
};
// In a manifest's state, which has none for the default.
inline constexpr const char* kDcpForm = "dcp_form";
// Likewise: {name: path} of values that belong to neither model nor optimizer, tensors (role training) and
// objects (role pickle). An item of our own writer lists all of those beside it.
inline constexpr const char* kDcpOthers = "dcp_others";
nlohmann::json ToJson(const DcpForm& form);
DcpForm DcpFormOf(const nlohmann::json& state);

// The optimizers of a checkpoint, and the names that parameters may have in their states.
struct DcpOptimizers {
  std::set<std::string> starts;  // the text before "state." and "param_groups." in names
  std::set<std::string, std::less<>> parameters;

  // Where the key begins in "layers.0.weight.exp_avg", and in one whose key has dots: at the dot after the
  // longest known parameter, else at the last one.
  size_t EndOfParameter(std::string_view name) const;
};
// `names`: of its tensors and items. Those without a path name no parameter that has another name.
DcpOptimizers DcpOptimizersOf(std::span<const DcpName> names);

// The place of a name below "state." of an optimizer; nothing for any other name.
std::optional<DcpPlace> DcpStatePlace(const std::string& name, const DcpOptimizers& optimizers);

// The place of each tensor. Weights are named by the last part of their path, the key of the model's state
// dict, unless two models in the checkpoint share names. States are named by their parameter, unless two
// optimizers share names: then "critic_optim.layers.0.weight".
std::vector<DcpPlace> PlaceDcpTensors(std::span<const DcpName> tensors, const DcpOptimizers& optimizers);

// The optimizers among `optimizers` that have a state of an unknown kind, or states of numbers that no file
// assigns to weights, each with the first such state. `places`: those of all tensors, of which `tensors` may
// be a part.
std::map<std::string, std::string> UnreadDcpOptimizers(std::span<const DcpName> tensors,
                                                       std::span<const DcpPlace> places,
                                                       const DcpOptimizers& optimizers);

// Whether a state or a hyper-parameter is of one of `optimizers`.
bool IsOfDcpOptimizers(const std::string& name, const std::set<std::string>& optimizers);

// Whether a state has its optimizer's name before its parameter's, since others have the same.
bool IsToldApart(const std::string& name, const std::string& parameter, const DcpOptimizers& optimizers);

// True if a state is unknown, or only a part of that of its parameter (part_of_state.h).
bool HasUnreadState(const std::vector<DcpPlace>& places, const std::function<Dims(size_t)>& shape_of);

// Without what torch.compile, FSDP1 and activation checkpointing put into the names of modules.
std::string WithoutModuleWrappers(std::string name);

}  // namespace cairn
