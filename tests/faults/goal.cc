#include "tests/faults/goal.h"

#include <algorithm>

namespace cairn {

constexpr size_t kComplaintsKept = 5;

void Tally::Add(uint64_t seed, const std::string& complaint) {
  ++tried_;
  if (complaint.empty()) return;
  ++failed_;
  const std::lock_guard lock(mutex_);
  failing_seed_ = std::min(seed, failing_seed_.value_or(seed));
  if (complaints_.size() < kComplaintsKept)
    complaints_.push_back("seed " + std::to_string(seed) + ": " + complaint);
}

void ForEachSeed(const GoalOptions& options, uint64_t states, Tally& tally,
                 const std::function<std::string(uint64_t seed)>& attempt) {
  ForEachSeedOn(options, states, tally, [&] { return attempt; });
}

void ForEachSeedOn(const GoalOptions& options, uint64_t states, Tally& tally,
                   const std::function<std::function<std::string(uint64_t seed)>()>& make) {
  if (options.seed) return tally.Add(*options.seed, make()(*options.seed));
  std::atomic<uint64_t> next = 0;
  const auto work = [&] {
    const auto attempt = make();
    for (uint64_t seed; (seed = next++) < states;) tally.Add(seed, attempt(seed));
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 1; i < options.jobs; ++i) threads.emplace_back(work);
  work();
}

}  // namespace cairn
