// Successors can condemn only one step: the one right before the first bad iteration. Steps that were saved
// later are bad by their own record, and steps that were saved earlier had a good iteration after them.
#include "ckpt/run/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

namespace cairn {
namespace {

using nlohmann::json;

// JSON has no NaN or infinity, and JSON printers write numbers of at least this size in different forms.
constexpr double kNumbersBelow = 1e15;

json NumberOrText(double value) {
  if (std::abs(value) < kNumbersBelow) return value;
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

bool ReadField(const json& object, const char* name, double& value) {
  const auto found = object.find(name);
  if (found == object.end()) return false;
  if (found->is_number()) value = found->get<double>();
  if (found->is_string()) value = std::strtod(found->get_ref<const std::string&>().c_str(), nullptr);
  return found->is_number() || found->is_string();
}

template <typename Integer>
bool ReadField(const json& object, const char* name, Integer& value) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return false;
  value = found->get<Integer>();
  return value >= 0;
}

}  // namespace

json ToJson(const Health& health) {
  json object = {{"loss", NumberOrText(health.loss)},
                 {"grad_norm", NumberOrText(health.grad_norm)},
                 {"bad_iterations", health.bad_iterations},
                 {"skipped_iterations", health.skipped_iterations},
                 {"nonfinite", health.nonfinite}};
  if (!health.session.empty()) object["session"] = health.session;
  if (health.bad_iterations == 0) return object;
  object["first_bad_iteration"] = health.first_bad_iteration;
  object["accused"] = health.accused;
  return object;
}

std::optional<Health> HealthOf(const json& state) {
  if (!state.is_object()) return std::nullopt;
  const auto found = state.find("health");
  if (found == state.end() || !found->is_object()) return std::nullopt;
  Health health;
  const json& object = *found;
  const bool whole = ReadField(object, "loss", health.loss) &&
                     ReadField(object, "grad_norm", health.grad_norm) &&
                     ReadField(object, "bad_iterations", health.bad_iterations) &&
                     ReadField(object, "skipped_iterations", health.skipped_iterations) &&
                     ReadField(object, "nonfinite", health.nonfinite);
  if (!whole) return std::nullopt;
  if (health.bad_iterations > 0 && !ReadField(object, "first_bad_iteration", health.first_bad_iteration))
    return std::nullopt;
  health.session = TextField(object, "session");
  health.accused = TextField(object, "accused");
  return health;
}

std::string WhyUnhealthy(const Health& health) {
  std::string why;
  if (health.bad_iterations > 0) {
    why = std::isfinite(health.loss)
              ? fmt::format("update skipped, gradient norm {}, ", health.grad_norm)
              : fmt::format("loss {}, ", std::isnan(health.loss) ? "nan" : fmt::format("{}", health.loss));
    why += health.bad_iterations == 1 ? fmt::format("iteration {} is bad", health.first_bad_iteration)
                                      : fmt::format("{} bad iterations in a row from iteration {}",
                                                    health.bad_iterations, health.first_bad_iteration);
  }
  if (health.nonfinite > 0)
    why += fmt::format(
        "{}{} not finite", why.empty() ? "" : "; ",
        health.nonfinite == 1 ? "1 saved value is" : fmt::format("{} saved values are", health.nonfinite));
  return why;
}

bool Healthy(const Manifest& manifest) {
  const std::optional<Health> health = HealthOf(manifest.state);
  return !health || Healthy(*health);
}

std::vector<std::string> Verdicts(std::span<const JudgedStep> steps,
                                  std::span<const Condemnation> condemned) {
  std::map<std::string, int64_t> acquitted_before;  // by session: its newest step that is good by its record
  for (const JudgedStep& step : steps)
    if (step.health && !step.health->session.empty() && Healthy(*step.health)) {
      int64_t& newest = acquitted_before.try_emplace(step.health->session, step.step).first->second;
      newest = std::max(newest, step.step);
    }
  const auto acquitted = [&](const JudgedStep& step) {
    const auto found = acquitted_before.find(step.health->session);
    return step.health->nonfinite == 0 && found != acquitted_before.end() && found->second > step.step;
  };

  using Name = std::pair<int64_t, std::string>;  // of a step: its number and session
  std::map<Name, std::string> accused;
  std::map<std::pair<std::string, Name>, std::string> on_disk;  // by run, too
  for (const Condemnation& c : condemned)
    on_disk[{c.run, {c.step, c.session}}] =
        c.bad_iterations == 1 ? "1 iteration after it was bad"
                              : fmt::format("{} iterations after it were bad", c.bad_iterations);
  std::vector<std::string> verdicts(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const JudgedStep& step = steps[i];
    if (!step.health || Healthy(*step.health) || acquitted(step)) continue;
    verdicts[i] = WhyUnhealthy(*step.health);
    if (step.health->bad_iterations > 0)
      accused.try_emplace({step.health->first_bad_iteration - 1, step.health->accused},
                          fmt::format("step {} records that the iteration after it was bad", step.step));
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!verdicts[i].empty()) continue;
    const Name name{steps[i].step, steps[i].health ? steps[i].health->session : std::string()};
    if (const auto found = accused.find(name); found != accused.end()) verdicts[i] = found->second;
    if (const auto found = on_disk.find({steps[i].run, name}); found != on_disk.end())
      verdicts[i] = found->second;
  }
  return verdicts;
}

}  // namespace cairn
