// The time of a step by its parts, under Megatron-LM's names and levels (--timing-log-level), and its lines:
//
//   (min, max) time across ranks (ms):
//       forward-backward ...............................: (12.31, 12.44)
//
// There is one set of timers per process, for the one thread that trains. A timer above the level costs a
// comparison. A timer that is on waits for the device at its start and at its end, as in Megatron-LM: it
// measures the work, not its launch. At level 0 nothing is on.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

// In the order of the lines.
enum class Timer : uint8_t {
  kForwardBackward,
  kEmbeddingGrads,
  kAllGradsSync,
  kParamsAllGather,
  kOptimizer,
  kBatchGenerator,
  kForwardCompute,
  kBackwardCompute,
  kForwardRecv,  // the wait for activations; sends wait for nothing
  kBackwardRecv,
};
inline constexpr int kTimers = static_cast<int>(Timer::kBackwardRecv) + 1;

std::string_view Name(Timer timer);
int Level(Timer timer);  // 1 or 2

// Seconds, by timer; 0 if it never ran.
using Times = std::array<double, kTimers>;

// `synchronize` waits for the device; empty on the CPU.
void SetTimers(int level, std::function<void()> synchronize = {});
bool TimersAreOn();
// Since the last call, or since SetTimers.
Times TakeTimes();

// Adds the time until its end. The same timer must not be running yet.
class ScopedTimer {
 public:
  explicit ScopedTimer(Timer timer);
  ~ScopedTimer();
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  const Timer timer_;
  const bool on_;
  std::chrono::steady_clock::time_point start_;
};

// Nothing is measured in its scope: evaluations are not part of a step.
class TimersPaused {
 public:
  TimersPaused();
  ~TimersPaused();
  TimersPaused(const TimersPaused&) = delete;
  TimersPaused& operator=(const TimersPaused&) = delete;

 private:
  const int level_;
};

template <typename Function>
auto Timed(Timer timer, Function&& function) {
  const ScopedTimer scope(timer);
  return function();
}

// --timing-log-option.
enum class TimesOf { kMax, kMinMax, kAll };

// The mean of a step over all ranks and `steps` steps; a rank where a timer never ran does not count, and a
// timer that ran nowhere has no line. Empty if none ran. Without the last newline.
std::string TimesText(std::span<const Times> ranks, int64_t steps, TimesOf option);
// The slowest rank's, for TensorBoard.
Times SlowestTimes(std::span<const Times> ranks);

}  // namespace cairn
