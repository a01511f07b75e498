// Sources write the same facts under several names, so each fact has a list of names and a value that
// follows from others if it is missing. What a target cannot hold goes through FitOptimizer() and
// PartGroups(): it is an error, or a note that begins with kAllowedNote if the user allowed it, and such
// notes reach the history.

#include "convert/formats/training/training_state.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "convert/foreign/shared_parameters.h"

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

}  // namespace

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
  for (const auto& [spec, first] : SecondNames(source)) state.shared_params[spec.name] = first;
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

Status FitOptimizer(TrainingTensors& tensors, Steps steps, bool allowed, TrainingState& state) {
  CAIRN_ASSIGN_OR_RETURN(const std::string left, LeaveOtherStates(tensors, steps, allowed));
  if (!left.empty())
    state.notes.push_back(fmt::format("{}the optimizer's {} is left out{}", kAllowedNote, left,
                                      steps == Steps::kOne && left.ends_with("step")
                                          ? fmt::format("; all parameters get step {}", state.optimizer_step)
                                          : ""));
  const auto counts = [](const TrainingParameter& p) { return p.exp_avg && !p.step; };
  if (state.step_known || std::ranges::none_of(tensors.parameters, counts)) return OkStatus();
  if (!allowed)
    return NotSupported(
        "no file says how many updates the optimizer's moments have had; --allow optimizer takes {}",
        state.optimizer_step);
  state.notes.push_back(
      fmt::format("{}no file says the optimizer's step, {} is written", kAllowedNote, state.optimizer_step));
  return OkStatus();
}

Status PartGroups(const TrainingTensors& tensors, size_t count,
                  const std::function<size_t(const ParameterSpec&)>& rule, bool allowed,
                  TrainingState& state) {
  std::vector<std::string> differing;
  CAIRN_ASSIGN_OR_RETURN(state.groups, PartBy(state.groups, tensors, count, rule, allowed, differing));
  if (differing.empty()) return OkStatus();
  const size_t more = differing.size() - std::min(differing.size(), kNamedParameters);
  differing.resize(differing.size() - more);
  state.notes.push_back(fmt::format("{}all of a group take what its first parameter has, not the {}{}",
                                    kAllowedNote, fmt::join(differing, ", "),
                                    more > 0 ? fmt::format(" and {} more", more) : ""));
  return OkStatus();
}

nlohmann::json ParamGroup(const TrainingState& state, size_t group) {
  return WithAdamWDefaults(state.groups.hyper[group]);
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
