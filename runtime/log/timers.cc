#include "runtime/log/timers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace cairn {
namespace {

struct TimerRow {
  std::string_view name;
  int level;
};
constexpr std::array<TimerRow, kTimers> kTimerRows = {{
    {"forward-backward", 1},
    {"embedding-grads-all-reduce", 1},
    {"all-grads-sync", 1},
    {"params-all-gather", 1},
    {"optimizer", 1},
    {"batch-generator", 2},
    {"forward-compute", 2},
    {"backward-compute", 2},
    {"forward-recv", 2},
    {"backward-recv", 2},
}};

struct TimerState {
  int level = 0;
  std::function<void()> synchronize;
  Times times{};
};

TimerState& Timers() {
  static TimerState state;
  return state;
}

// "    forward-backward .......: " in the width of Megatron-LM's.
std::string LineStart(std::string_view name) {
  return fmt::format("\n    {:.<48}: ", fmt::format("{} ", name));
}

// Milliseconds a step of the ranks where the timer ran.
std::vector<std::pair<size_t, double>> Ran(std::span<const Times> ranks, int timer, int64_t steps) {
  std::vector<std::pair<size_t, double>> ran;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    if (const double seconds = ranks[rank][static_cast<size_t>(timer)]; seconds > 0)
      ran.emplace_back(rank, seconds * 1e3 / static_cast<double>(steps));
  return ran;
}

}  // namespace

std::string_view Name(Timer timer) { return kTimerRows[static_cast<size_t>(timer)].name; }

int Level(Timer timer) { return kTimerRows[static_cast<size_t>(timer)].level; }

void SetTimers(int level, std::function<void()> synchronize) {
  Timers() = {.level = level, .synchronize = std::move(synchronize), .times = {}};
}

bool TimersAreOn() { return Timers().level > 0; }

Times TakeTimes() { return std::exchange(Timers().times, {}); }

ScopedTimer::ScopedTimer(Timer timer) : timer_(timer), on_(Level(timer) <= Timers().level) {
  if (!on_) return;
  if (Timers().synchronize) Timers().synchronize();
  start_ = std::chrono::steady_clock::now();
}

ScopedTimer::~ScopedTimer() {
  if (!on_) return;
  if (Timers().synchronize) Timers().synchronize();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  Timers().times[static_cast<size_t>(timer_)] += elapsed.count();
}

TimersPaused::TimersPaused() : level_(std::exchange(Timers().level, 0)) {}

TimersPaused::~TimersPaused() { Timers().level = level_; }

std::string TimesText(std::span<const Times> ranks, int64_t steps, TimesOf option) {
  std::string lines;
  for (int timer = 0; timer < kTimers; ++timer) {
    const auto ran = Ran(ranks, timer, steps);
    if (ran.empty()) continue;
    const std::string_view name = kTimerRows[static_cast<size_t>(timer)].name;
    const auto [least, most] = std::ranges::minmax(ran, {}, [](const auto& entry) { return entry.second; });
    if (option == TimesOf::kMinMax)
      lines += LineStart(name) + fmt::format("({:.2f}, {:.2f})", least.second, most.second);
    else if (option == TimesOf::kMax)
      lines += LineStart(name) + fmt::format("{:.2f}", most.second);
    else
      lines += fmt::format("\n  {}:", name);
    if (option == TimesOf::kAll)
      for (const auto& [rank, milliseconds] : ran)
        lines += fmt::format("\n     rank {:2d}: {:.2f}", rank, milliseconds);
  }
  if (lines.empty()) return lines;
  return (option == TimesOf::kMinMax ? "(min, max) time across ranks (ms):"
          : option == TimesOf::kMax  ? "max time across ranks (ms):"
                                     : "times across ranks (ms):") +
         lines;
}

Times SlowestTimes(std::span<const Times> ranks) {
  Times slowest{};
  for (const Times& rank : ranks)
    for (size_t timer = 0; timer < slowest.size(); ++timer)
      slowest[timer] = std::max(slowest[timer], rank[timer]);
  return slowest;
}

}  // namespace cairn
