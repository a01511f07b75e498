#include "runtime/control/train_state.h"

#include <algorithm>
#include <cmath>
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

// The first existing one; `fallback` if there is none.
int64_t CountOf(const nlohmann::json& json, std::initializer_list<const char*> names, int64_t fallback) {
  for (const char* name : names)
    if (const auto found = json.find(name);
        found != json.end() && found->is_number_integer() && found->get<int64_t>() >= 0)
      return found->get<int64_t>();
  return fallback;
}

// The list of this name. Empty if it is missing or holds other values.
template <typename Each>
std::vector<Each> ListOf(const nlohmann::json& json, const char* name, bool (*fits)(const nlohmann::json&)) {
  const auto found = json.find(name);
  const bool good = found != json.end() && found->is_array() && std::ranges::all_of(*found, fits);
  return good ? found->get<std::vector<Each>>() : std::vector<Each>();
}

std::optional<ValidationLoss> ValidationOf(const nlohmann::json& json) {
  const auto found = json.find("validation");
  if (found == json.end() || !found->is_object()) return std::nullopt;
  const auto loss = found->find("loss");
  const int64_t iteration = CountOf(*found, {"iteration"}, -1);
  if (iteration < 0 || loss == found->end() || !loss->is_number()) return std::nullopt;
  return ValidationLoss{.iteration = iteration, .loss = loss->get<double>()};
}

}  // namespace

nlohmann::json TrainState::ToJson() const {
  nlohmann::json json = nlohmann::json::object();
  ForEachField(*this, [&](const char* name, const auto& value) { json[name] = value; });
  json["scheduled_samples"] = scheduled_samples;
  json["training_samples"] = training_samples;
  json["health"] = cairn::ToJson(health);
  if (epoch > 0) json["epoch"] = epoch;
  if (!data.empty()) json["data"] = data;
  if (!data_changes.empty()) json["data_changes"] = data_changes;
  if (validation) json["validation"] = {{"iteration", validation->iteration}, {"loss", validation->loss}};
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
  state.epoch = CountOf(json, {"epoch"}, 0);
  state.validation = ValidationOf(json);
  state.data = ListOf<std::string>(json, "data", [](const auto& each) { return each.is_string(); });
  state.data_changes =
      ListOf<int64_t>(json, "data_changes", [](const auto& each) { return each.is_number_integer(); });
  return state;
}

Result<TrainState> TrainState::FromOtherProgram(const nlohmann::json& json,
                                                std::vector<std::string>& missing) {
  nlohmann::json own = json.is_object() ? json : nlohmann::json::object();
  const auto also = [&](const char* name, const char* theirs) {
    if (!own.contains(name) && own.contains(theirs)) own[name] = own[theirs];
  };
  also("optimizer_steps", "optimizer_step");
  also("skipped_iterations", "skipped_steps");
  if (own.contains("iteration") && own["iteration"].is_number_integer()) {
    const int64_t skipped = own.value("skipped_iterations", nlohmann::json(0)).is_number_integer()
                                ? own.value("skipped_iterations", int64_t{0})
                                : 0;
    if (!own.contains("optimizer_steps")) own["optimizer_steps"] = own["iteration"].get<int64_t>() - skipped;
  }
  // Whole numbers of tensors.
  for (const char* name : {"optimizer_steps", "iteration"})
    if (own.contains(name) && own[name].is_number_float() &&
        own[name].get<double>() == std::floor(own[name].get<double>()) && own[name].get<double>() < 9e15)
      own[name] = static_cast<int64_t>(own[name].get<double>());
  const nlohmann::json begins = TrainState().ToJson();
  for (const auto& [name, value] : begins.items()) {
    const bool optional = name == "health" || name == "scheduled_samples" || name == "training_samples";
    if (own.contains(name) || optional) continue;
    own[name] = name == "seed" ? nlohmann::json(kUnknownSeed) : value;
    missing.push_back(name);
  }
  return FromJson(own);
}

}  // namespace cairn
