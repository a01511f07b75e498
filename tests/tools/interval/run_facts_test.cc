#include "tools/interval/run_facts.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

RunEvent Start(double time, std::vector<std::string> hosts, std::string tier = "run", double step_time = 0) {
  const bool local = tier == "local";
  return {.time = time,
          .hosts = std::move(hosts),
          .ranks = 4,
          .local = local,
          .seconds = 10,
          .step = 1,
          .tier = std::move(tier),
          .step_time = step_time};
}
RunEvent End(double time, std::string how) {
  return {.kind = RunEventKind::kEnd, .time = time, .how = std::move(how)};
}

MeasuredRun Measured(const std::vector<RunEvent>& events, double newest_step_time = 0) {
  MeasuredRun measured;
  TakeEvents(events, newest_step_time, measured);
  return measured;
}

TEST(RunFactsTest, AKilledStartLastedUntilTheStepThatTheNextOneFound) {
  const MeasuredRun run = Measured({Start(100, {"a"}), Start(500, {"a"}, "run", 400)}, 900);
  EXPECT_EQ(run.failures.seconds, 300 + 400);
  EXPECT_EQ(run.failures.seen[0], 1);
  EXPECT_EQ(run.restart_seconds, 10);  // at least: since its launch
}

TEST(RunFactsTest, EndsInGoodOrderAreNotCounted) {
  const MeasuredRun run =
      Measured({Start(100, {"a"}), End(200, "done"), Start(500, {"a"}), End(600, "diverged")});
  EXPECT_EQ(run.failures.count(), 0);
  EXPECT_EQ(run.failures.seconds, 200);
  EXPECT_EQ(run.starts, 2);
}

TEST(RunFactsTest, TheLastStartMayStillRun) {
  EXPECT_EQ(Measured({Start(100, {"a"})}, 150).failures.count(), 0);
  const MeasuredRun failed = Measured({Start(100, {"a"}), End(150, "failed")});
  EXPECT_EQ(failed.failures.of_unknown_kind, 1);
}

TEST(RunFactsTest, AFailureAfterWhichLocalStepsAreGoneTookSeveralNodes) {
  const std::vector<std::string> hosts = {"a", "b", "c", "d"};
  const MeasuredRun run =
      Measured({Start(100, hosts), Start(200, hosts, "local"), Start(300, {"a", "b", "c", "e"}, "local"),
                Start(400, {"a", "b", "c", "e"}, "run")});
  EXPECT_EQ(run.failures.seen, (std::array<int64_t, 3>{1, 1, 1}));
  EXPECT_EQ(run.several_lost, std::vector<int64_t>{2});
  EXPECT_EQ(run.nodes, 4);
}

TEST(RunFactsTest, ARestartThatFollowsAKnownEndIsMeasured) {
  const MeasuredRun run = Measured({Start(100, {"a"}), End(200, "failed"), Start(290, {"a"})});
  EXPECT_EQ(run.restart_seconds, 90);
  EXPECT_EQ(run.failures.seen[0], 1);
}

}  // namespace
}  // namespace cairn
