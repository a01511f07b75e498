#include "ckpt/run/run_events.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

class RunEventsTest : public testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(dir_ / "events") << text; }
  std::string Why() { return ReadEvents(fs_, dir_.path()).status().message(); }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir dir_{TempDir::Place::kMemory};
};

TEST_F(RunEventsTest, EventsComeBackAsTheyWereAdded) {
  EXPECT_TRUE(ReadEvents(fs_, dir_.path())->empty());
  ASSERT_TRUE(AppendEvent(fs_, dir_.path(),
                          {.time = 1.5,
                           .hosts = {"a", "b\n\xff"},
                           .ranks = 8,
                           .local = true,
                           .seconds = 2.25,
                           .step = 40,
                           .tier = "local"})
                  .ok());
  ASSERT_TRUE(AppendEvent(fs_, dir_.path(),
                          {.kind = RunEventKind::kSave, .time = 3, .seconds = 0.5, .step = 60, .stall = 0.25})
                  .ok());
  ASSERT_TRUE(
      AppendEvent(fs_, dir_.path(), {.kind = RunEventKind::kNotSaved, .time = 3, .step = 80, .why = "full"})
          .ok());
  ASSERT_TRUE(AppendEvent(fs_, dir_.path(),
                          {.kind = RunEventKind::kEnd, .time = 4, .how = "failed", .why = "rank 3: gone"})
                  .ok());
  ASSERT_TRUE(AppendEvent(fs_, dir_.path(),
                          {.kind = RunEventKind::kAlarm, .time = 5, .step = 80, .why = "copies differ"})
                  .ok());
  const std::vector<RunEvent> events = *ReadEvents(fs_, dir_.path());
  ASSERT_EQ(events.size(), 5);
  EXPECT_EQ(events[0].hosts, (std::vector<std::string>{"a", "b\n\xef\xbf\xbd"}));
  EXPECT_EQ(events[0].step, 40);
  EXPECT_TRUE(events[0].local);
  EXPECT_EQ(events[0].tier, "local");
  EXPECT_EQ(events[0].seconds, 2.25);
  EXPECT_EQ(events[1].kind, RunEventKind::kSave);
  EXPECT_EQ(events[1].stall, 0.25);
  EXPECT_EQ(events[2].kind, RunEventKind::kNotSaved);
  EXPECT_EQ(events[2].step, 80);
  EXPECT_EQ(events[2].why, "full");
  EXPECT_EQ(events[3].how, "failed");
  EXPECT_EQ(events[3].why, "rank 3: gone");
  EXPECT_EQ(events[4].step, 80);
  EXPECT_EQ(events[4].why, "copies differ");
}

TEST_F(RunEventsTest, OnlyTheNewestThousandLinesStay) {
  std::string text;
  for (int i = 1; i <= 1500; ++i) text += fmt::format("{{\"event\":\"start\",\"time\":{}}}\n", i);
  Write(text);
  ASSERT_TRUE(AppendEvent(fs_, dir_.path(), {.time = 9000}).ok());
  const std::vector<RunEvent> events = *ReadEvents(fs_, dir_.path());
  EXPECT_EQ(events.size(), 1000);
  EXPECT_EQ(events.front().time, 502);
  EXPECT_EQ(events.back().time, 9000);
}

TEST_F(RunEventsTest, LinesOfLaterVersionsAreLeftOutAndDamageNamesItsLine) {
  const std::string good = "{\"event\":\"start\",\"time\":1}\n";
  Write(good + "{\"event\":\"eclipse\",\"time\":2}\n");
  EXPECT_EQ(ReadEvents(fs_, dir_.path())->size(), 1);
  for (const char* damage :
       {"\n", "{", "[]", "{\"event\":\"end\"}", "{\"time\":1}", "{\"event\":\"end\",\"time\":-1}", "\xff"}) {
    Write(good + damage + "\n");
    EXPECT_NE(Why().find("/events line 2: "), std::string::npos) << damage << ": " << Why();
  }
}

}  // namespace
}  // namespace cairn
