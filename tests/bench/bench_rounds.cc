// Contenders only add seconds to named series; rates, spreads and ratios are computed from these at the end.
// The i-th seconds of two series are of the same round, which is what makes a ratio within a round possible.
// Before each contender the file system may finish its discards, so that none pays for what another
// deleted.

#include "tests/bench/bench_rounds.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tools/cli/text_table.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

GoalRatio Goal(std::string name, std::string what, const Series& ours, const Series& limit, double goal,
               bool bandwidth) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(ours.seconds.size(), limit.seconds.size()); ++i) {
    const double time = ours.seconds[i] / static_cast<double>(ours.bytes) * static_cast<double>(limit.bytes) /
                        limit.seconds[i];
    ratios.push_back(bandwidth ? 1 / time : time);
  }
  return {std::move(name), std::move(what), SpreadOf(ratios), goal, bandwidth, limit.Noisy()};
}

// A file system that discards what was deleted (mount option `discard`) does so behind our back, and the next
// contender would pay for it.
void AwaitDiscards() {
  ::sync();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
}

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const size_t n = values.size();
  return {n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.front(),
          values.back()};
}

Spread Series::GbPerSecond() const {
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(static_cast<double>(bytes) / std::max(s, 1e-9) / 1e9);
  return SpreadOf(std::move(rates));
}

bool Series::Noisy() const {
  const Spread spread = SpreadOf(seconds);
  return spread.max - spread.min > kVoidSpread * spread.median;
}

void Samples::Add(const std::string& name, uint64_t bytes, double seconds) {
  auto found = std::ranges::find(series_, name, &Series::name);
  if (found == series_.end()) found = series_.insert(series_.end(), {name, bytes, {}});
  found->seconds.push_back(seconds);
}

const Series* Samples::Find(const std::string& name) const {
  const auto found = std::ranges::find(series_, name, &Series::name);
  return found == series_.end() ? nullptr : &*found;
}

const Series* Samples::Faster(const std::string& a, const std::string& b) const {
  const Series* first = Find(a);
  const Series* second = Find(b);
  if (first == nullptr || second == nullptr) return first == nullptr ? second : first;
  return first->GbPerSecond().median >= second->GbPerSecond().median ? first : second;
}

Result<Samples> RunRounds(const std::vector<Contender>& contenders, int rounds,
                          const std::function<void(const std::string&)>& tell) {
  Samples samples;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const Contender& contender = contenders[(i + round) % contenders.size()];
      if (tell) tell(fmt::format("round {} of {}: {}", round + 1, rounds, contender.name));
      AwaitDiscards();
      CAIRN_RETURN_IF_ERROR(contender.run(samples).WithContext(contender.name));
    }
  }
  return samples;
}

GoalRatio BandwidthGoal(std::string name, std::string what, const Series& ours, const Series& limit,
                        double goal) {
  return Goal(std::move(name), std::move(what), ours, limit, goal, true);
}

GoalRatio TimeGoal(std::string name, std::string what, const Series& ours, const Series& limit, double goal) {
  return Goal(std::move(name), std::move(what), ours, limit, goal, false);
}

ordered_json ToJson(const Samples& samples) {
  ordered_json all = ordered_json::object();
  for (const Series& series : samples.series()) {
    const Spread rate = series.GbPerSecond();
    all[series.name] = {{"bytes", series.bytes},
                        {"gb_per_s", {{"median", rate.median}, {"min", rate.min}, {"max", rate.max}}},
                        {"seconds", series.seconds},
                        {"void", series.Noisy()}};
  }
  return all;
}

void AddGoals(ordered_json& report, const std::vector<GoalRatio>& goals) {
  for (const GoalRatio& goal : goals) report[goal.name] = goal.ratio.median;
  ordered_json& details = report["goals"] = ordered_json::object();
  for (const GoalRatio& goal : goals)
    details[goal.name] = {{"what", goal.what},     {"ratio", goal.ratio.median},
                          {"min", goal.ratio.min}, {"max", goal.ratio.max},
                          {"goal", goal.goal},     {"bound", goal.at_least ? "at least" : "at most"},
                          {"met", goal.met()},     {"void", goal.noisy}};
}

void PrintSamples(const Samples& samples) {
  TextTable table({"what", "GB/s", "from", "to", "seconds", ""});
  for (const Series& series : samples.series()) {
    const Spread rate = series.GbPerSecond();
    table.Add({series.name, fmt::format("{:.2f}", rate.median), fmt::format("{:.2f}", rate.min),
               fmt::format("{:.2f}", rate.max), fmt::format("{:.3f}", SpreadOf(series.seconds).median),
               series.Noisy() ? fmt::format("moved by more than {:.0f} %", 100 * kVoidSpread) : ""});
  }
  table.Print();
}

void PrintGoals(const std::vector<GoalRatio>& goals) {
  TextTable table({"ratio", "here", "from", "to", "goal", "", "what"});
  for (const GoalRatio& goal : goals)
    table.Add({goal.name, fmt::format("{:.3f}", goal.ratio.median), fmt::format("{:.3f}", goal.ratio.min),
               fmt::format("{:.3f}", goal.ratio.max),
               fmt::format("{} {}", goal.at_least ? ">=" : "<=", goal.goal),
               goal.noisy   ? "void: the limit moved"
               : goal.met() ? "met"
                            : "missed",
               goal.what});
  table.Print();
}

}  // namespace cairn
