// Sources write the same facts under several names, so each fact has a list of names and a value that
// follows from others if it is missing. GroupsOfSource() decides which parameter is in which group: by the
// names that the source states, else all in one, else matrices and vectors if two groups name no members;
// anything else is refused. What a target cannot hold goes through FitStates() and PartGroups(): it is an
// error, or a note that begins with kAllowedNote if the user allowed it, and such notes reach the history.

#include "convert/formats/training/training_state.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ckpt/base/short_list.h"
#include "convert/foreign/shared_parameters.h"
#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

constexpr std::string_view kSchedule = "lr_schedule.";
constexpr size_t kNamedParameters = 16;  // in a note

int64_t FirstNumber(const nlohmann::json& state, std::initializer_list<const char*> names, int64_t fallback) {
  for (const char* name : names) {
    const auto found = state.find(name);
    if (found == state.end() || !found->is_number()) continue;
    return found->is_number_integer() ? found->get<int64_t>() : static_cast<int64_t>(found->get<double>());
  }
  return fallback;
}

bool SaysMembers(const nlohmann::json& group) {
  const auto members = group.find(kGroupMembers);
  return members != group.end() && members->is_array();
}

// Not stated, as opposed to "unknown", which is null.
bool IsSilent(const nlohmann::json& group) { return !group.contains(kGroupMembers); }

void AddStated(const nlohmann::json& param_groups, OptimizerGroups& groups) {
  for (size_t g = 0; g < param_groups.size(); ++g) {
    size_t index = 0;
    for (const auto& name : param_groups[g].value(kGroupMembers, nlohmann::json::array()))
      if (name.is_string()) groups.place.emplace(name.get<std::string>(), OptimizerGroups::Place{g, index++});
  }
}

void AddByRule(const TrainingTensors& tensors, const std::function<size_t(const ParameterSpec&)>& rule,
               OptimizerGroups& groups) {
  std::vector<size_t> sizes(groups.size());
  for (const TrainingParameter& parameter : tensors.parameters) {
    const size_t g = rule(parameter.spec);
    groups.place.emplace(parameter.spec.name, OptimizerGroups::Place{g, sizes[g]++});
  }
}

// The first key in which two groups' hyper-parameters differ; empty if they are equal. A group's name does
// not count.
std::string DifferenceOf(const nlohmann::json& a, const nlohmann::json& b) {
  for (const auto& [key, value] : a.items())
    if (key != "name" && (!b.contains(key) || b[key] != value)) return key;
  for (const auto& [key, value] : b.items())
    if (key != "name" && !a.contains(key)) return key;
  return "";
}

}  // namespace

std::vector<std::string> OptimizerGroups::MembersOf(size_t group) const {
  std::vector<std::pair<size_t, std::string>> members;
  for (const auto& [name, at] : place)
    if (at.group == group) members.emplace_back(at.index, name);
  std::ranges::sort(members);
  std::vector<std::string> names;
  for (auto& [index, name] : members) names.push_back(std::move(name));
  return names;
}

Result<OptimizerGroups> GroupsOfSource(const nlohmann::json& param_groups, const TrainingTensors& tensors) {
  OptimizerGroups groups;
  for (const auto& group : param_groups) {
    if (!group.is_object())
      return Corrupt("param_groups of the training's state has a group that is {}", group.type_name());
    groups.hyper.push_back(group);
    groups.hyper.back().erase(kGroupMembers);
  }
  if (groups.hyper.empty()) groups.hyper.push_back(nlohmann::json::object());
  const auto of_all = [](const ParameterSpec&) { return size_t{0}; };
  if (std::ranges::any_of(param_groups, SaysMembers)) {
    AddStated(param_groups, groups);
  } else if (groups.size() == 1) {
    AddByRule(tensors, of_all, groups);
  } else if (groups.size() == 2 && std::ranges::all_of(param_groups, IsSilent)) {
    AddByRule(tensors, MatricesThenVectors, groups);
  } else {
    return NotSupported(
        "the optimizer has {} groups of parameters, but the checkpoint does not record which parameters are "
        "in which group; choose --param-groups 1 or 2",
        groups.size());
  }
  for (const TrainingParameter& parameter : tensors.parameters)
    if (parameter.has_state() && !groups.place.contains(parameter.spec.name))
      return NotSupported("{} has an optimizer's state but is in none of its {} groups of parameters",
                          parameter.spec.name, groups.size());
  return groups;
}

TrainingState TrainingStateOf(const CheckpointSource& source) {
  const Manifest& manifest = source.manifest();
  const nlohmann::json& from = manifest.state;
  TrainingState state;
  state.iteration = FirstNumber(from, {"iteration", "global_step", "step"}, manifest.step);
  state.consumed_samples = FirstNumber(from, {"consumed_samples"}, 0);
  state.scheduled_samples = FirstNumber(from, {"scheduled_samples"}, state.consumed_samples);
  state.consumed_tokens = FirstNumber(from, {"consumed_tokens"}, 0);
  state.skipped = FirstNumber(from, {"skipped_steps", "skipped_iterations"}, 0);
  state.optimizer_step =
      FirstNumber(from, {"optimizer_step", "optimizer_steps"}, state.iteration - state.skipped);
  for (const char* name : {"optimizer_step", "optimizer_steps", "iteration", "global_step", "step"})
    state.step_known |= from.contains(name) && from[name].is_number();
  if (const auto scale = from.find("loss_scale"); scale != from.end() && scale->is_number())
    state.loss_scale = scale->get<double>();
  if (const auto dynamic = from.find("dynamic_loss_scale"); dynamic != from.end() && dynamic->is_boolean())
    state.dynamic_loss_scale = dynamic->get<bool>();
  state.loss_scale_good_steps = FirstNumber(from, {"loss_scale_good_steps"}, 0);
  if (const int64_t hysteresis = FirstNumber(from, {"loss_scale_hysteresis"}, -1); hysteresis >= 0)
    state.loss_scale_hysteresis = hysteresis;
  // cairn train, whose scale is dynamic if it tolerates overflows.
  state.dynamic_loss_scale |= state.loss_scale_hysteresis.value_or(0) > 0;
  state.round_robin_gradients = from.value("round_robin_gradients", nlohmann::json()) == true;
  if (const auto clip = from.find("clip_grad"); clip != from.end() && clip->is_number())
    state.clip_grad = clip->get<double>();
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    const auto is_it = [&](const TensorEntry& t) { return t.role == Role::kWeight && t.dtype == dtype; };
    if (from.value("params_dtype", nlohmann::json()) == Name(dtype) ||
        std::ranges::any_of(source.catalog().tensors, is_it))
      state.params_dtype = dtype;
  }
  for (const auto& [key, value] : from.items())
    if (key.starts_with(kSchedule)) state.schedule[key.substr(kSchedule.size())] = value;
  if (const auto groups = from.find("param_groups"); groups != from.end() && groups->is_array())
    state.param_groups = *groups;
  for (const auto& [spec, first] : SecondNames(source.manifest(), source.catalog()))
    state.shared_params[spec.name] = first;
  return state;
}

nlohmann::json HistoryWith(const Manifest& source, std::string_view format,
                           const std::vector<std::string>& notes) {
  nlohmann::json history = source.history;
  for (const std::string& note : notes)
    if (note.starts_with(kAllowedNote))
      history.push_back(
          fmt::format("convert to {}: {} (--allow optimizer)", format, note.substr(kAllowedNote.size())));
  return history;
}

Status PartGroups(const TrainingTensors& tensors, size_t count,
                  const std::function<size_t(const ParameterSpec&)>& rule, bool allowed,
                  TrainingState& state) {
  OptimizerGroups parted;
  std::vector<std::string> differing;  // keys that no longer hold: "betas of NAME"
  parted.hyper.resize(count, state.groups.hyper[0]);
  std::vector<const std::string*> first(count);
  std::vector<size_t> sizes(count);
  for (const TrainingParameter& parameter : tensors.parameters) {
    const std::string& name = parameter.spec.name;
    const auto before = state.groups.place.find(name);
    if (before == state.groups.place.end()) continue;
    const size_t g = rule(parameter.spec);
    const nlohmann::json& hyper = state.groups.hyper[before->second.group];
    if (!first[g]) parted.hyper[g] = hyper;
    const std::string difference = DifferenceOf(parted.hyper[g], hyper);
    if (!difference.empty() && !allowed)
      return NotSupported(
          "{} and {} differ in the optimizer's {}, but share a group here; --allow optimizer gives both "
          "that of the first",
          *first[g], name, difference);
    if (!difference.empty()) differing.push_back(difference + " of " + name);
    if (!first[g]) first[g] = &name;
    parted.place.emplace(name, OptimizerGroups::Place{g, sizes[g]++});
  }
  state.groups = std::move(parted);
  if (differing.empty()) return OkStatus();
  state.notes.push_back(fmt::format("{}all of a group take what its first parameter has, not the {}",
                                    kAllowedNote, ShortList(differing, kNamedParameters)));
  return OkStatus();
}

nlohmann::json WithAdamWDefaults(const nlohmann::json& hyper) {
  nlohmann::json chosen = {{"lr", 1e-3},  // torch 2.11, torch/optim/adamw.py
                           {"betas", {0.9, 0.999}},
                           {"eps", 1e-8},
                           {"weight_decay", 1e-2},
                           {"amsgrad", false},
                           {"maximize", false},
                           {"foreach", nullptr},
                           {"capturable", false},
                           {"fused", nullptr},
                           {"differentiable", false},
                           {"decoupled_weight_decay", true}};
  chosen.update(hyper);
  return chosen;
}

std::string AdamWDefaultsInWords() {
  return "no file says the optimizer's hyper-parameters; torch.optim.AdamW's defaults stand there (lr 0.001, "
         "betas 0.9 and 0.999, eps 1e-08, weight decay 0.01)";
}

nlohmann::json ParamGroup(const TrainingState& state, size_t group) {
  const nlohmann::json& hyper = state.groups.hyper[group];
  const bool other = !state.param_groups.empty() && (!state.adam || hyper.contains("momentum"));
  return other ? hyper : WithAdamWDefaults(hyper);
}

void EmitHyperParameters(PickleEmitter& pickle, const nlohmann::json& group) {
  for (const auto& [key, value] : group.items()) {
    pickle.Text(key);
    if (key != "betas" || !value.is_array()) {
      pickle.Json(value);
      continue;
    }
    pickle.BeginTuple();
    for (const auto& beta : value) pickle.Json(beta);
    pickle.EndTuple();
  }
}

void EmitParamGroup(PickleEmitter& pickle, const TrainingState& state, size_t group,
                    const std::vector<size_t>& params, const nlohmann::json& own) {
  pickle.BeginDict();
  nlohmann::json values = ParamGroup(state, group);
  values.update(own);
  EmitHyperParameters(pickle, values);
  pickle.Entry("params", params);
  pickle.EndDict();
}

}  // namespace cairn
