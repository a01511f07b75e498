#include "ckpt/run/run_record.h"

#include <gtest/gtest.h>

#include "ckpt/run/run_events.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::vector<RunEventKind> KindsIn(const std::string& run_dir) {
  const auto events = ReadEvents(FileSystem::Posix(), run_dir);
  EXPECT_TRUE(events.ok()) << events.status().message();
  std::vector<RunEventKind> kinds;
  for (const RunEvent& event : *events) kinds.push_back(event.kind);
  return kinds;
}

void NothingToSay(const std::string& line) { ADD_FAILURE() << line; }

TEST(RunRecordTest, OtherEventsWaitForTheStart) {
  const TempDir temp;
  RunRecord record(FileSystem::Posix(), temp / "", NothingToSay);
  record.Saved(1, 0.5, 2);
  EXPECT_TRUE(KindsIn(temp / "").empty());
  record.Start({});
  record.Start({});
  EXPECT_EQ(KindsIn(temp / ""), (std::vector{RunEventKind::kStart, RunEventKind::kSave}));
}

TEST(RunRecordTest, GivingUpLocalStepsWaitsForNoStart) {
  const TempDir temp;
  RunRecord record(FileSystem::Posix(), temp / "", NothingToSay);
  record.GaveUpLocal(5, "the loss is nan");
  const std::vector<RunEvent> events = *ReadEvents(FileSystem::Posix(), temp / "");
  ASSERT_EQ(events.size(), 1);
  EXPECT_EQ(events[0].kind, RunEventKind::kGaveUpLocal);
  EXPECT_EQ(events[0].step, 5);
  EXPECT_EQ(events[0].why, "the loss is nan");
}

TEST(RunRecordTest, AfterAHelperDiedTheNextOneContinuesItsRecord) {
  const TempDir temp;
  RunRecord(FileSystem::Posix(), temp / "", NothingToSay).Start({});
  RunRecord record(FileSystem::Posix(), temp / "", NothingToSay);
  record.Alarm(7, "copies differ");
  record.Continue();
  record.Continue();
  record.End("done", "");
  EXPECT_EQ(KindsIn(temp / ""),
            (std::vector{RunEventKind::kStart, RunEventKind::kAlarm, RunEventKind::kEnd}));
}

}  // namespace
}  // namespace cairn
