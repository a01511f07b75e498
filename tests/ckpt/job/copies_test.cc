#include "ckpt/job/copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cairn {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Sums of one group by rank, in files whose names are their contents.
Copies Of(const std::string& group, const std::vector<json>& ranks) {
  Copies copies;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    copies.Add(static_cast<int>(rank), "host" + std::to_string(rank), {{group, ranks[rank].dump()}});
  return copies;
}
Copies::Verdict Compared(const Copies& copies, EqualCopies& equal) {
  return *copies.Compare(equal, [](int, const std::string& name) { return Result(name); });
}

TEST(CopiesTest, EqualCopiesHaveNoVerdict) {
  EqualCopies equal;
  for (int save = 0; save < 3; ++save) {
    const json sums = {{"a,0,0", save}, {"b,0", "x"}};
    const auto verdict = Compared(Of("all", {sums, sums, sums}), equal);
    EXPECT_EQ(verdict.alarm + verdict.lost, "");
    EXPECT_THAT(verdict.notes, ElementsAre());
  }
}

TEST(CopiesTest, OfThreeTheOddOneIsNamed) {
  EqualCopies equal;
  const json good = {{"a,0,0", "1"}, {"b,0", "2"}};
  (void)Compared(Of("all", {good, good, good}), equal);
  for (const char* part : {"a,0,0", "b,0"}) {
    json odd = good;
    odd[part] = "3";
    const auto verdict = Compared(Of("all", {good, good, odd}), equal);
    EXPECT_THAT(verdict.alarm, StartsWith(kCopiesDiffer));
    EXPECT_THAT(verdict.alarm, HasSubstr(fmt::format("{} of rank 2 (host host2) is not that of ranks 0 and 1",
                                                     std::string(part, 1))));
    EXPECT_EQ(verdict.lost, "");
  }
}

TEST(CopiesTest, ATensorThatWasEqualInAnEarlierSaveIsAnAlarm) {
  EqualCopies equal;
  const json both = {{"a,0,0", "1"}, {"b,0,0", "2"}}, one = {{"a,0,0", "1"}};
  (void)Compared(Of("all", {both, both}), equal);
  (void)Compared(Of("all", {one, one}), equal);
  const auto verdict = Compared(Of("all", {both, {{"a,0,0", "1"}, {"b,0,0", "3"}}}), equal);
  EXPECT_THAT(verdict.alarm, HasSubstr("b of ranks 0"));
  EXPECT_EQ(verdict.lost, "");
}

TEST(CopiesTest, OfTwoBothAreNamed) {
  EqualCopies equal;
  const json good = {{"a,0,0", "1"}, {"w,0,0", "2"}}, odd = {{"a,0,0", "5"}, {"w,0,0", "6"}};
  (void)Compared(Of("all", {good, good}), equal);
  EXPECT_THAT(Compared(Of("all", {good, odd}), equal).alarm,
              HasSubstr("a of ranks 0 (host host0) and 1 (host host1) is not the same and 1 more tensors"));
}

TEST(CopiesTest, TensorsThatNeverWereEqualAreRefusedByName) {
  EqualCopies equal;
  const json first = {{"a,0,0", "1"}, {"w1,0,0", "2"}, {"w2,0,0", "3"}};
  const json second = {{"a,0,0", "1"}, {"w1,0,0", "4"}, {"w2,0,0", "5"}};
  for (int save = 0; save < 2; ++save) {
    const auto verdict = Compared(Of("all", {first, second}), equal);
    EXPECT_EQ(verdict.alarm, "");
    EXPECT_THAT(verdict.lost, HasSubstr("ranks 0 and 1 differ in w1 and 1 more tensors"));
  }
  EXPECT_THAT(Compared(Of("all", {second, {{"a,0,0", "1"}}}), equal).lost, HasSubstr("differ in w1 and 1"));
}

TEST(CopiesTest, VectorsAndGivenRanksAreNotedUntilTheyWereEqual) {
  EqualCopies equal;
  const json first = {{"a,0,0", "1"}}, second = {{"a,0,0", "2"}};
  EXPECT_THAT(Compared(Of("given-1", {first, second}), equal).notes,
              ElementsAre("ranks 0 and 1 differ in a; one rank's were kept"));
  EXPECT_THAT(Compared(Of("all", {{{"v,0", "1"}}, {{"v,0", "2"}}}), equal).notes,
              ElementsAre("ranks 0 and 1 differ in v; one rank's were kept"));
  (void)Compared(Of("given-1", {first, first}), equal);
  EXPECT_THAT(Compared(Of("given-1", {first, second}), equal).alarm, HasSubstr("a of ranks 0"));
}

TEST(CopiesTest, DamagedFilesAreErrors) {
  EqualCopies equal;
  const auto read = [](int, const std::string& name) { return Result(name); };
  EXPECT_EQ(Of("all", {json::array(), json::object()}).Compare(equal, read).status().kind(),
            StatusKind::kCorrupt);
}

}  // namespace
}  // namespace cairn
