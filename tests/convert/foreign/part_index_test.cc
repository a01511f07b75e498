#include "convert/foreign/part_index.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "convert/foreign/transpose.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;

// Tensor 1 is the left half of array 0 and all of array 1, transposed; tensor 0 a number in array 2.
const std::vector<ArrayPart> kParts = {{{{{0, 0}, {2, 2}}, {{0, 0}, {2, 2}}}, 1, 0},
                                       {{{}, {}}, 0, 2},
                                       {{{{0, 2}, {2, 3}}, {{0, 0}, {3, 2}}, kLastTwoSwapped}, 1, 1}};

std::vector<std::pair<uint32_t, std::string>> Meetings(uint32_t ArrayPart::*by, uint32_t number,
                                                       const Box& box) {
  std::vector<std::pair<uint32_t, std::string>> found;
  const PartIndex index(kParts, by);
  for (const auto& [part, common] : index.Meet(number, box)) found.emplace_back(part.array, ToString(common));
  return found;
}

TEST(PartIndex, FindsThePartsThatOverlapABox) {
  const auto of = [](uint32_t tensor, const Box& box) { return Meetings(&ArrayPart::tensor, tensor, box); };
  EXPECT_THAT(of(1, {{1, 1}, {1, 3}}), ElementsAre(std::pair(0, "[1:2, 1:2]"), std::pair(1, "[1:2, 2:4]")));
  EXPECT_THAT(of(1, {{0, 3}, {2, 2}}), ElementsAre(std::pair(1, "[0:2, 3:5]")));
  EXPECT_THAT(of(0, {}), ElementsAre(std::pair(2, "[]")));
  EXPECT_THAT(of(2, {{0}, {1}}), ElementsAre());
}

TEST(PartIndex, FindsThePartsThatOverlapABoxOfAnArray) {
  const auto of = [](uint32_t array, const Box& box) { return Meetings(&ArrayPart::array, array, box); };
  EXPECT_THAT(of(1, {{2, 0}, {1, 2}}), ElementsAre(std::pair(1, "[2:3, 0:2]")));
  EXPECT_THAT(of(0, {{0, 2}, {2, 2}}), ElementsAre());
}

TEST(PartIndex, RunsOfATransposedPartFollowTheArray) {
  const Box box{{0, 1}, {2, 3}};  // of tensor 1, in memory
  const std::string bytes = "abcdef";
  std::vector<std::pair<uint64_t, std::string>> runs;
  BoxTransposer transposer;
  for (const auto& [part, common] : PartIndex(kParts).Meet(1, box))
    transposer.MapRuns(
        part, common, box, std::as_bytes(std::span(bytes)), Box::Whole({part.reorders() ? 3u : 2u, 2}),
        [&](uint64_t at, std::span<const std::byte> run) {
          runs.emplace_back(at, std::string(reinterpret_cast<const char*>(run.data()), run.size()));
        });
  EXPECT_THAT(runs, ElementsAre(std::pair(1, "a"), std::pair(3, "d"), std::pair(0, "becf")));
}

}  // namespace
}  // namespace cairn
