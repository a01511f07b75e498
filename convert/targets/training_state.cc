#include "convert/targets/training_state.h"

#include <algorithm>

#include "convert/shared_parameters.h"

namespace cairn {
namespace {

constexpr std::string_view kSchedule = "lr_schedule.";

// torch 2.11, torch/optim/adamw.py.
nlohmann::json AdamWDefaults() {
  return {{"lr", 1e-3},
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
}

int64_t FirstOf(const nlohmann::json& state, std::initializer_list<const char*> names, int64_t fallback) {
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
  state.iteration = FirstOf(from, {"iteration", "global_step", "step"}, manifest.step);
  state.consumed_samples = FirstOf(from, {"consumed_samples"}, 0);
  state.consumed_tokens = FirstOf(from, {"consumed_tokens"}, 0);
  state.skipped = FirstOf(from, {"skipped_steps", "skipped_iterations"}, 0);
  state.optimizer_step =
      FirstOf(from, {"optimizer_step", "optimizer_steps"}, state.iteration - state.skipped);
  if (const auto scale = from.find("loss_scale"); scale != from.end() && scale->is_number())
    state.loss_scale = scale->get<double>();
  if (const auto dynamic = from.find("dynamic_loss_scale"); dynamic != from.end() && dynamic->is_boolean())
    state.dynamic_loss_scale = dynamic->get<bool>();
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
    for (const auto& group : *groups)
      if (group.is_object()) state.param_groups.push_back(group);
  for (const auto& [spec, first] : SecondNames(source)) state.shared_params[spec.name] = first;
  return state;
}

nlohmann::json ParamGroup(const TrainingState& state, size_t group, size_t count) {
  nlohmann::json chosen = AdamWDefaults();
  if (state.param_groups.size() == count)
    chosen.update(state.param_groups[group]);
  else if (!state.param_groups.empty())
    chosen.update(state.param_groups[0]);
  return chosen;
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

}  // namespace cairn
