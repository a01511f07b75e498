#include "runtime/control/silent_hosts.h"

#include <gtest/gtest.h>

#include <memory>

#include "runtime/control/status_board.h"

namespace cairn {
namespace {

constexpr auto kNever = std::nullopt;
using Ages = std::vector<std::optional<double>>;

struct Case {
  const char* name;
  Ages ages;  // seconds since each host was heard
  int own;
  SilentHosts found;
};

// A host is silent after 10 s.
const Case kCases[] = {
    {"all are heard, the first host speaks", {0.1, 0.5, 0.9}, 0, {.first = {}, .speaks = true}},
    {"all are heard, another host", {0.1, 0.5, 0.9}, 2, {.first = {}}},
    {"one is silent", {0.1, 0.5, 20, 0.9}, 0, {.first = {2}, .speaks = true}},
    {"the first one is silent, so the next speaks", {20, 0.1, 0.5}, 1, {.first = {0}, .speaks = true}},
    {"the first one is silent, the last one does not speak", {20, 0.5, 0.1}, 2, {.first = {0}}},
    {"one fell silent, and later one that waited for it",
     {0.1, 12, 30, 0.5},
     0,
     {.first = {2}, .speaks = true}},
    {"later all that waited for it", {0.1, 12, 30, 12.5}, 0, {.first = {2}, .speaks = true}},
    {"two at the same time", {0.1, 30, 29, 0.5}, 0, {.first = {1, 2}, .speaks = true}},
    {"all others at the same time: it is this one",
     {30, 30.5, 29, 0},
     3,
     {.first = {3}, .cut_off = true, .speaks = true}},
    {"the other one of two", {0, 30}, 0, {.first = {1}, .speaks = true}},
    {"hosts that were never heard are not judged", {0, 30, kNever, 0.5}, 0, {.first = {1}, .speaks = true}},
    {"the only one of the others that was ever heard",
     {kNever, kNever, 30, 0},
     3,
     {.first = {2}, .speaks = true}},
    {"nobody was ever heard", {0, kNever, kNever}, 0, {.first = {}, .speaks = true}},
    {"this host's own heartbeat stands still", {40, 40, 40}, 1, {}},
    {"this host has no heartbeat", {40, kNever, 1}, 1, {}},
};

TEST(SilentHosts, FindsTheHostThatFellSilentFirst) {
  for (const Case& c : kCases) {
    const SilentHosts found = FindSilentHosts(c.ages, c.own, 10);
    EXPECT_EQ(found, c.found) << c.name;
  }
}

// Three hosts of two ranks; this is rank 1, on the first.
TEST(SilentHosts, ReportsHostsByNameAndFirstRank) {
  const auto board = StatusBoard::Private(1, {"n1", "n1", "n2", "n2", "n3", "n3"});
  EXPECT_EQ(ReportHosts(*board, 1).silent, "");
  EXPECT_FALSE(ReportHosts(*board, 1).all_heard) << "no heartbeat was started";
  board->SetFirstRanks({0, 0, 2, 2, 4, 4}, 10);
  board->Hear(0);
  board->Hear(2);
  EXPECT_EQ(ReportHosts(*board, 1).never_heard, "host n3 (first rank 4)");
  board->Hear(4);
  EXPECT_TRUE(ReportHosts(*board, 1).all_heard);
  board->ForgiveSilence(-20);
  board->Hear(0);
  board->Hear(2);
  EXPECT_TRUE(ReportHosts(*board, 1).silent.starts_with("host n3 (first rank 4) fell silent first, 20."))
      << ReportHosts(*board, 1).silent;
  EXPECT_FALSE(ReportHosts(*board, 1).all_heard);
  EXPECT_TRUE(board->Describe(5).starts_with("rank 5 (host n3, which is silent for 20."))
      << board->Describe(5);
  EXPECT_EQ(board->Describe(3), "rank 3 (host n2)");
  board->ForgiveSilence(-20);
  board->Hear(0);
  EXPECT_TRUE(ReportHosts(*board, 1).silent.starts_with("host n3 (first rank 4) fell silent first, 40."));
  board->Hear(2);
  board->Hear(4);
  board->ForgiveSilence(-20);
  board->Hear(0);
  EXPECT_TRUE(
      ReportHosts(*board, 1).silent.starts_with("host n1 (first rank 0) is cut off: it has heard none"));
}

}  // namespace
}  // namespace cairn
