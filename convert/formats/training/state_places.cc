#include "convert/formats/training/state_places.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "convert/formats/training/training_state.h"

namespace cairn {
namespace {

bool HasAdamStates(const TrainingParameter& parameter) {
  return std::ranges::includes(parameter.roles(), kAdamStates);
}

// Why a state, or a master, has no place; empty: it has one.
std::string WhyNoPlace(const StatePlaces& places, const TrainingParameter& parameter,
                       const TensorEntry& state) {
  const bool known = std::ranges::includes(parameter.roles(), places.only) &&
                     std::ranges::find(places.only, state.role) != places.only.end();
  if (!places.only.empty() && state.role != Role::kMaster && !known)
    return fmt::format("the format has no place for the optimizer's {}", Name(state.role));
  if (!places.any_shape && state.spec.shape != parameter.spec.shape)
    return fmt::format("the optimizer's {} has shape {}, and the format holds states of the parameter's, {}",
                       Name(state.role), ToString(state.spec.shape), ToString(parameter.spec.shape));
  if (!places.any_type && state.dtype != Dtype::kF32)
    return fmt::format("the optimizer's {} is {}, and the format holds it in fp32", Name(state.role),
                       Name(state.dtype));
  return "";
}

class Fitter {
 public:
  Fitter(const StatePlaces& places, bool allowed, TrainingTensors& tensors)
      : places_(places), allowed_(allowed), tensors_(tensors) {}

  Status Fit(TrainingParameter& parameter) {
    std::vector<std::pair<Role, uint32_t>> kept;
    for (const auto& [role, tensor] : parameter.states) {
      const std::string why = WhyNoPlace(places_, parameter, tensors_.tensors[tensor].entry);
      if (why.empty())
        kept.emplace_back(role, tensor);
      else
        CAIRN_RETURN_IF_ERROR(Omit(parameter, tensor, why));
    }
    parameter.states = std::move(kept);
    if (parameter.step && (places_.steps == Steps::kOne || !(parameter.has_state() || places_.any_shape)))
      CAIRN_RETURN_IF_ERROR(
          Omit(parameter, *std::exchange(parameter.step, std::nullopt),
               "the format has no place for the optimizer's steps that differ between parameters"));
    if (!parameter.master) return OkStatus();
    TensorEntry& master = tensors_.tensors[*parameter.master].entry;
    if (!parameter.has_state())
      tensors_.tensors[*parameter.master].read_back = false;
    else if (const std::string why = WhyNoPlace(places_, parameter, master); !why.empty())
      return NotSupported("{}: {}; dcp and native keep its type", parameter.spec.name, why);
    return OkStatus();
  }

  const std::set<std::string>& left() const { return left_; }

 private:
  Status Omit(const TrainingParameter& parameter, uint32_t tensor, const std::string& why) {
    if (!allowed_)
      return NotSupported("{}: {}; --allow optimizer leaves it out, and {} hold it", parameter.spec.name, why,
                          places_.elsewhere);
    tensors_.tensors[tensor].read_back = false;
    left_.emplace(Name(tensors_.tensors[tensor].entry.role));
    return OkStatus();
  }

  const StatePlaces& places_;
  const bool allowed_;
  TrainingTensors& tensors_;
  std::set<std::string> left_;  // roles
};

}  // namespace

std::optional<Role> StateRole(std::string_view key) {
  const Result<Role> role = RoleNamed(key);
  return role.ok() && IsOptimizerState(*role) && *role != Role::kMaster ? std::optional(*role) : std::nullopt;
}

Status FitStates(const StatePlaces& places, bool allowed, TrainingTensors& tensors, TrainingState& state) {
  Fitter fitter(places, allowed, tensors);
  for (TrainingParameter& parameter : tensors.parameters) CAIRN_RETURN_IF_ERROR(fitter.Fit(parameter));
  tensors.optimizer = std::ranges::any_of(tensors.parameters, &TrainingParameter::has_state);
  state.adam = !tensors.optimizer || std::ranges::any_of(tensors.parameters, HasAdamStates);
  if (!fitter.left().empty())
    state.notes.push_back(fmt::format("{}the optimizer's {} is left out{}", kAllowedNote,
                                      fmt::join(fitter.left(), ", "),
                                      places.steps == Steps::kOne && fitter.left().contains("step")
                                          ? fmt::format("; all parameters get step {}", state.optimizer_step)
                                          : ""));
  const auto counts = [](const TrainingParameter& p) { return HasAdamStates(p) && !p.step; };
  if (state.step_known || std::ranges::none_of(tensors.parameters, counts)) return OkStatus();
  if (!allowed)
    return NotSupported(
        "no file has the number of updates of the optimizer's moments; --allow optimizer assumes {}",
        state.optimizer_step);
  state.notes.push_back(
      fmt::format("{}no file says the optimizer's step, {} is written", kAllowedNote, state.optimizer_step));
  return OkStatus();
}

std::optional<std::pair<std::string, Role>> LostState(
    const std::map<std::string, std::set<Role>, std::less<>>& states) {
  std::set<std::set<Role>> all;
  for (const auto& [name, roles] : states) all.insert(roles);
  for (const auto& [name, roles] : states)
    for (const std::set<Role>& more : all)
      if (!roles.empty() && more.size() > roles.size() && std::ranges::includes(more, roles))
        return std::pair(
            name, *std::ranges::find_if(more, [&own = roles](Role role) { return !own.contains(role); }));
  return std::nullopt;
}

}  // namespace cairn
