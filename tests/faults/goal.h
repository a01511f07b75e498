// One goal of the fault tests: a number of states, each of which its seed reproduces.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace cairn {

struct GoalOptions {
  std::optional<uint64_t> seed;                                   // only this state, with details
  enum class Form { kQuick, kUsual, kLong } form = Form::kUsual;  // how many states
  unsigned jobs = std::max(1u, std::thread::hardware_concurrency());
};

class Tally {
 public:
  // A state and what is wrong with it; empty: it passed. Safe from several threads.
  void Add(uint64_t seed, const std::string& complaint);

  uint64_t tried() const { return tried_; }
  uint64_t passed() const { return tried_ - failed_; }
  std::optional<uint64_t> failing_seed() const { return failing_seed_; }      // the smallest
  const std::vector<std::string>& complaints() const { return complaints_; }  // the first few

 private:
  std::atomic<uint64_t> tried_ = 0;
  std::atomic<uint64_t> failed_ = 0;
  std::mutex mutex_;
  std::optional<uint64_t> failing_seed_;
  std::vector<std::string> complaints_;
};

// Tries seeds 0 to `states` - 1, or the one that the options name, on `threads` threads. `attempt` returns
// the complaint.
void ForEachSeed(const GoalOptions& options, uint64_t states, Tally& tally,
                 const std::function<std::string(uint64_t seed)>& attempt);

// The same with separate state for each thread: each calls `make`.
void ForEachSeedOn(const GoalOptions& options, uint64_t states, Tally& tally,
                   const std::function<std::function<std::string(uint64_t seed)>()>& make);

// The goals. Each fails its tally if its own set-up fails.
void RunKillPoints(const GoalOptions& options, Tally& tally);
void RunPowerLoss(const GoalOptions& options, Tally& tally);
void RunErrors(const GoalOptions& options, Tally& tally);
void RunDamage(const GoalOptions& options, Tally& tally);
void RunReaders(const GoalOptions& options, Tally& tally);
void RunMutants(const GoalOptions& options, Tally& tally);
void RunNodeSteps(const GoalOptions& options, Tally& tally);

}  // namespace cairn
