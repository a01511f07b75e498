#include "ckpt/base/box.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace cairn {
namespace {

Box RandomBox(std::mt19937& random, const Dims& shape) {
  Box box = Box::Whole(shape);
  for (int i = 0; i < shape.rank(); ++i) {
    box.offset[i] = random() % shape[i];
    box.extent[i] = 1 + random() % (shape[i] - box.offset[i]);
  }
  return box;
}

Dims RandomShape(std::mt19937& random) {
  Dims shape;
  for (int rank = random() % 5; rank > 0; --rank) shape.push_back(1 + random() % 6);
  return shape;
}

// All elements of a box, in row-major order, as indices of the tensor.
std::vector<uint64_t> Elements(const Box& box, const Dims& shape) {
  std::vector<uint64_t> elements;
  ForEachRun(box, box, Box::Whole(shape), [&](uint64_t, uint64_t target, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) elements.push_back(target + i);
  });
  return elements;
}

TEST(BoxTest, RunsVisitEveryElementOfABoxOnceInOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const Dims shape = RandomShape(random);
    const Box box = RandomBox(random, shape);
    const std::vector<uint64_t> elements = Elements(box, shape);
    EXPECT_EQ(elements.size(), box.Volume());
    EXPECT_TRUE(std::is_sorted(elements.begin(), elements.end()));
    EXPECT_EQ(std::adjacent_find(elements.begin(), elements.end()), elements.end());
  }
}

TEST(BoxTest, WholeBoxIsOneRun) {
  const Box box = Box::Whole({3, 4, 5});
  int runs = 0;
  ForEachRun(box, box, box, [&](uint64_t, uint64_t, uint64_t count) {
    ++runs;
    EXPECT_EQ(count, 60u);
  });
  EXPECT_EQ(runs, 1);
}

TEST(BoxTest, BoxesOfAFlatRangeKeepItsElementsInOrder) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const Dims shape = RandomShape(random);
    const Box box = RandomBox(random, shape);
    FlatRange range{random() % (box.Volume() + 1), random() % (box.Volume() + 1)};
    if (range.begin > range.end) std::swap(range.begin, range.end);
    const std::vector<uint64_t> all = Elements(box, shape);
    std::vector<uint64_t> got;
    const std::vector<Segment> segments = Decompose(box, range);
    EXPECT_LE(segments.size(), std::max(1, 2 * shape.rank() - 1) + 0u);
    for (const Segment& segment : segments) {
      EXPECT_EQ(segment.begin, got.size());
      for (uint64_t element : Elements(segment.box, shape)) got.push_back(element);
    }
    EXPECT_EQ(got, std::vector<uint64_t>(all.begin() + range.begin, all.begin() + range.end))
        << ToString(box) << " " << range.begin << ":" << range.end;
  }
}

TEST(BoxTest, IntersectionHasTheCommonElements) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const Dims shape = RandomShape(random);
    const Box a = RandomBox(random, shape), b = RandomBox(random, shape);
    const std::vector<uint64_t> of_a = Elements(a, shape), of_b = Elements(b, shape);
    std::vector<uint64_t> common;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(common));
    const std::optional<Box> box = Intersect(a, b);
    EXPECT_EQ(box ? Elements(*box, shape) : std::vector<uint64_t>(), common);
    EXPECT_TRUE(!box || (Contains(a, *box) && Contains(b, *box)));
  }
}

TEST(BoxTest, ContainsIsFalseIfTheEndOverflows) {
  EXPECT_FALSE(Contains(Box{{0}, {10}}, Box{{UINT64_MAX}, {5}}));
  EXPECT_FALSE(Contains(Box{{0}, {10}}, Box{{5}, {UINT64_MAX}}));
  EXPECT_TRUE(Contains(Box{{2}, {10}}, Box{{2}, {10}}));
}

TEST(BoxTest, CheckedBytesRefusesProductsBeyond63Bits) {
  EXPECT_EQ(CheckedBytes({1 << 20, 1 << 20}, 4), uint64_t{1} << 42);
  EXPECT_EQ(CheckedBytes({UINT64_MAX, 2}, 4), std::nullopt);
  EXPECT_EQ(CheckedBytes({uint64_t{1} << 62}, 2), std::nullopt);
  EXPECT_EQ(CheckedBytes({UINT64_MAX, 0}, 8), 0u);
}

}  // namespace
}  // namespace cairn
