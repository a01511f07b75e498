// Contenders measured in turn: the core that every job of cairn-bench shares.
//
// A round runs each contender once, and each round starts with the next one, so that none always follows the
// same neighbour. Figures are medians over the rounds with the extremes beside them; a ratio is the median of
// the ratios within a round, because the machine's own speed moves between rounds.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/base/stopwatch.h"

namespace cairn {

// A limit that moved by more than this part of its median over the rounds voids the ratios taken to it.
inline constexpr double kVoidSpread = 0.15;

struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};
Spread SpreadOf(std::vector<double> values);  // zeros if there are none

// One thing that was timed, once a round.
struct Series {
  std::string name;
  uint64_t bytes = 0;  // moved each time
  std::vector<double> seconds;

  Spread GbPerSecond() const;  // 10^9 bytes
  bool Noisy() const;          // see kVoidSpread
};

class Samples {
 public:
  void Add(const std::string& name, uint64_t bytes, double seconds);
  const std::vector<Series>& series() const { return series_; }
  const Series* Find(const std::string& name) const;  // null if nothing of that name was timed
  // The one with the higher median bandwidth; null if neither was timed.
  const Series* Faster(const std::string& a, const std::string& b) const;

 private:
  std::vector<Series> series_;  // by first appearance
};

struct Contender {
  std::string name;
  std::function<Status(Samples&)> run;  // adds each of its series once
};

// Runs all of them `rounds` times. `tell` (may be empty) hears "round 2 of 5: NAME" before each.
// Errors: the first contender's to fail, with its name.
Result<Samples> RunRounds(const std::vector<Contender>& contenders, int rounds,
                          const std::function<void(const std::string&)>& tell = {});

// A goal of the project: a ratio of two series of one run.
struct GoalRatio {
  std::string name;  // "flush_ratio"
  std::string what;  // the description in the report
  Spread ratio;
  double goal = 0;
  bool at_least = true;  // else at most
  bool noisy = false;    // the limit moved too much: look, but do not quote

  bool met() const { return at_least ? ratio.median >= goal : ratio.median <= goal; }
};

// `ours` over `limit`, as bandwidths: 1 is the limit, more is faster. Both were timed in every round.
GoalRatio BandwidthGoal(std::string name, std::string what, const Series& ours, const Series& limit,
                        double goal);
// `ours` over `limit`, as times: 1 is the limit, less is faster.
GoalRatio TimeGoal(std::string name, std::string what, const Series& ours, const Series& limit, double goal);

// {"NAME": {"bytes": n, "gb_per_s": {median, min, max}, "seconds": [...], "void": false}}
nlohmann::ordered_json ToJson(const Samples& samples);
// {"flush_ratio": 0.99, ..., "goals": {"flush_ratio": {"goal", "bound", "met", "void", "min", "max"}}}
void AddGoals(nlohmann::ordered_json& report, const std::vector<GoalRatio>& goals);
// The same as tables on stdout.
void PrintSamples(const Samples& samples);
void PrintGoals(const std::vector<GoalRatio>& goals);

}  // namespace cairn
