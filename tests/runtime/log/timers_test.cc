#include "runtime/log/timers.h"

#include <gtest/gtest.h>

#include <vector>

namespace cairn {
namespace {

Times Of(std::initializer_list<std::pair<Timer, double>> seconds) {
  Times times{};
  for (const auto& [timer, value] : seconds) times[static_cast<size_t>(timer)] = value;
  return times;
}

double& At(Times& times, Timer timer) { return times[static_cast<size_t>(timer)]; }

// As megatron-core 0.16's Timers.log printed these times of two ranks with normalizer 2.
TEST(TimersTest, LinesMatchMegatrons) {
  const std::vector<Times> ranks = {Of({{Timer::kForwardBackward, 0.5}, {Timer::kForwardRecv, 0.25}}),
                                    Of({{Timer::kForwardBackward, 1.5}})};
  EXPECT_EQ(TimesText(ranks, 2, TimesOf::kMinMax),
            "(min, max) time across ranks (ms):\n"
            "    forward-backward ...............................: (250.00, 750.00)\n"
            "    forward-recv ...................................: (125.00, 125.00)");
  EXPECT_EQ(TimesText(ranks, 2, TimesOf::kMax),
            "max time across ranks (ms):\n"
            "    forward-backward ...............................: 750.00\n"
            "    forward-recv ...................................: 125.00");
  EXPECT_EQ(TimesText(ranks, 2, TimesOf::kAll),
            "times across ranks (ms):\n"
            "  forward-backward:\n"
            "     rank  0: 250.00\n"
            "     rank  1: 750.00\n"
            "  forward-recv:\n"
            "     rank  0: 125.00");
  EXPECT_EQ(TimesText(std::vector<Times>(2), 1, TimesOf::kMinMax), "");
  EXPECT_EQ(SlowestTimes(ranks), Of({{Timer::kForwardBackward, 1.5}, {Timer::kForwardRecv, 0.25}}));
}

// A timer that is off must not wait for a device: it would stop work that runs ahead.
TEST(TimersTest, TheLevelSelectsTheTimers) {
  for (const int level : {0, 1, 2}) {
    int waits = 0;
    SetTimers(level, [&] { ++waits; });
    EXPECT_EQ(TimersAreOn(), level > 0);
    { const ScopedTimer timer(Timer::kForwardBackward); }
    for (int i = 0; i < 3; ++i) const ScopedTimer timer(Timer::kForwardCompute);
    EXPECT_EQ(waits, level == 0 ? 0 : level == 1 ? 2 : 8);
    Times times = TakeTimes();
    EXPECT_EQ(At(times, Timer::kForwardBackward) > 0, level >= 1);
    EXPECT_EQ(At(times, Timer::kForwardCompute) > 0, level >= 2);
    {
      const TimersPaused paused;
      const ScopedTimer timer(Timer::kForwardBackward);
    }
    EXPECT_EQ(TakeTimes(), Times{});
    EXPECT_EQ(TimersAreOn(), level > 0);
  }
  SetTimers(0);
}

}  // namespace
}  // namespace cairn
