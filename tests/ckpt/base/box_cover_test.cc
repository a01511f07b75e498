#include "ckpt/base/box_cover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace cairn {
namespace {

TEST(BoxCoverTest, FindsTwoOverlappingBoxesAmongMany) {
  std::vector<Box> boxes;  // columns of one matrix: all of them share all rows
  for (uint64_t i = 0; i < 600; ++i) boxes.push_back({{0, 2 * i}, {8, 2}});
  EXPECT_FALSE(FindOverlap(boxes));
  boxes[599].offset[1] = 1;  // over the first two
  const auto overlap = FindOverlap(boxes);
  ASSERT_TRUE(overlap);
  EXPECT_EQ(*overlap, std::pair(size_t{0}, size_t{599}));
}

TEST(BoxCoverTest, EmptyAndAdjacentBoxesDoNotOverlap) {
  EXPECT_FALSE(FindOverlap({}));
  EXPECT_FALSE(FindOverlap(std::vector<Box>{{{0}, {4}}, {{4}, {4}}, {{2}, {0}}}));
  EXPECT_TRUE(FindOverlap(std::vector<Box>{Box{}, Box{}})) << "a scalar twice";
}

TEST(BoxCoverTest, AgreesWithComparingAllPairs) {
  std::mt19937_64 rng(17);
  for (int round = 0; round < 300; ++round) {
    std::vector<Box> boxes;
    for (int i = 0; i < 6; ++i) boxes.push_back({{rng() % 6, rng() % 6}, {rng() % 3, rng() % 3}});
    bool meet = false;
    for (size_t i = 0; i < boxes.size(); ++i)
      for (size_t j = 0; j < i; ++j) meet |= Intersect(boxes[i], boxes[j]).has_value();
    EXPECT_EQ(FindOverlap(boxes).has_value(), meet);
  }
}

TEST(BoxCoverTest, TheFirstGapIsTheFirstIndexThatNoBoxHas) {
  std::mt19937_64 rng(18);
  for (int round = 0; round < 300; ++round) {
    const Dims shape = {2, 3, 4};
    std::vector<Box> boxes;
    for (int i = 0; i < 40; ++i) {
      Box box{{rng() % 2, rng() % 3, rng() % 4}, {1, 1, 1}};
      for (int dim = 0; dim < 3; ++dim) box.extent[dim] += rng() % (shape[dim] - box.offset[dim]);
      if (std::ranges::none_of(boxes, [&](const Box& other) { return Intersect(box, other).has_value(); }))
        boxes.push_back(box);
    }
    std::optional<Dims> first;
    for (uint64_t i = 24; i-- > 0;) {
      const Dims at = {i / 12, i / 4 % 3, i % 4};
      if (std::ranges::none_of(boxes, [&](const Box& box) { return Contains(box, {at, {1, 1, 1}}); }))
        first = at;
    }
    EXPECT_EQ(FirstGap(boxes, shape), first);
  }
}

}  // namespace
}  // namespace cairn
