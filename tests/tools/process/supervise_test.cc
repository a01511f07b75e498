#include "tools/process/supervise.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace cairn {
namespace {

// Supervise() changes the signals of its process, so each call gets one of its own.
[[noreturn]] void ExitWith(const std::string& script) {
  const auto status = Supervise({"sh", "-c", script}, [] { std::fputs("stopping\n", stderr); });
  std::exit(status.ok() ? *status : 99);
}

TEST(SuperviseTest, ReturnsTheStatusOrTheSignal) {
  EXPECT_EXIT(ExitWith("exit 3"), testing::ExitedWithCode(3), "");
  EXPECT_EXIT(ExitWith("kill -KILL $$"), testing::ExitedWithCode(128 + 9), "");
}

TEST(SuperviseTest, TheFirstRequestToStopBecomesAUserSignal) {
  EXPECT_EXIT(ExitWith("trap 'exit 7' USR1; kill -TERM $PPID; while :; do sleep 0.02; done"),
              testing::ExitedWithCode(7), "stopping");
}

TEST(SuperviseTest, TheSecondRequestEndsTheCommand) {
  EXPECT_EXIT(ExitWith("trap 'kill -TERM $PPID' USR1; kill -TERM $PPID; while :; do sleep 0.02; done"),
              testing::ExitedWithCode(128 + 15), "stopping");
}

TEST(SuperviseTest, AProgramThatIsMissingIsAnError) {
  EXPECT_EXIT(std::exit(Supervise({"no-such-program"}, [] {}).status().kind() == StatusKind::kNotFound),
              testing::ExitedWithCode(1), "");
  EXPECT_EQ(Become({"no-such-program"}).kind(), StatusKind::kNotFound);
}

}  // namespace
}  // namespace cairn
