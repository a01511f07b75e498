#include "runtime/train_state.h"

#include <nlohmann/json.hpp>

namespace cairn {
namespace {

// Every field once, by name: reading and writing follow from it.
template <typename State, typename Visit>
void ForEachField(State& state, Visit&& visit) {
  visit("iteration", state.iteration);
  visit("consumed_samples", state.consumed_samples);
  visit("consumed_tokens", state.consumed_tokens);
  visit("optimizer_steps", state.optimizer_steps);
  visit("skipped_iterations", state.skipped_iterations);
  visit("nan_iterations", state.nan_iterations);
  visit("seed", state.seed);
  visit("loss_scale", state.loss_scale);
  visit("loss_scale_good_steps", state.loss_scale_good_steps);
  visit("loss_scale_hysteresis", state.loss_scale_hysteresis);
}

// The first that is there; `fallback` where none is.
int64_t CountOf(const nlohmann::json& json, std::initializer_list<const char*> names, int64_t fallback) {
  for (const char* name : names)
    if (const auto found = json.find(name);
        found != json.end() && found->is_number_integer() && found->get<int64_t>() >= 0)
      return found->get<int64_t>();
  return fallback;
}

}  // namespace

nlohmann::json TrainState::ToJson() const {
  nlohmann::json json = nlohmann::json::object();
  ForEachField(*this, [&](const char* name, const auto& value) { json[name] = value; });
  json["scheduled_samples"] = scheduled_samples;
  json["training_samples"] = training_samples;
  json["health"] = cairn::ToJson(health);
  return json;
}

Result<TrainState> TrainState::FromJson(const nlohmann::json& json) {
  TrainState state;
  std::string bad;
  ForEachField(state, [&](const char* name, auto& value) {
    using Value = std::remove_cvref_t<decltype(value)>;
    const bool fits =
        json.is_object() && json.contains(name) &&
        (std::is_floating_point_v<Value> ? json[name].is_number() : json[name].is_number_integer());
    if (fits) value = json[name].get<Value>();
    if (!fits || (value < 0 && std::string_view(name) != "seed")) bad = name;
  });
  if (!bad.empty()) return Corrupt("training state: '{}' is missing or not a valid number", bad);
  state.scheduled_samples =
      CountOf(json, {"scheduled_samples", "lr_schedule.num_steps"}, state.consumed_samples);
  state.training_samples = CountOf(json, {"training_samples"}, 0);
  if (const std::optional<Health> health = HealthOf(json)) state.health = *health;
  return state;
}

}  // namespace cairn
