#include "ckpt/model/copy_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "ckpt/model/region.h"

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TensorTable OneTensor(const Dims& shape) {
  return {.tensors = {{{.name = "w", .shape = shape}, Role::kWeight, Dtype::kBF16}}, .files = {}};
}

// Columns of a matrix [4, 6] cut in two, wanted cut by rows.
TEST(CopyProgramTest, ColumnsToRows) {
  const TensorTable table = OneTensor({4, 6});
  const RegionList there({Region::Whole(0, 0, {{0, 0}, {4, 3}}), Region::Whole(0, 1, {{0, 3}, {4, 3}})});
  const RegionList wanted({Region::Whole(0, 0, {{0, 0}, {2, 6}}), Region::Whole(0, 1, {{2, 0}, {2, 6}})});
  const auto program = PlanCopies(table, there, wanted);
  ASSERT_TRUE(program.ok());
  EXPECT_THAT(program->copies, ElementsAre(Copy{0, 0, 6}, Copy{1, 0, 6}, Copy{0, 1, 6}, Copy{1, 1, 6}));
  const ProgramSize size = SizeOf(*program, table, there, wanted);
  EXPECT_EQ(size.copies, 4u);
  EXPECT_EQ(size.bytes, 48u);
  EXPECT_THAT(size.from_files, ElementsAre(24, 24));
  EXPECT_THAT(size.to_files, ElementsAre(24, 24));
}

TEST(CopyProgramTest, NamesHolesAndDuplicateElements) {
  const TensorTable table = OneTensor({4, 6});
  const RegionList wanted({Region::Whole(0, 0, Box::Whole({4, 6}))});
  const auto hole = PlanCopies(table, RegionList({Region::Whole(0, 0, {{0, 0}, {4, 5}})}), wanted);
  ASSERT_EQ(hole.status().kind(), StatusKind::kCorrupt);
  EXPECT_THAT(hole.status().message(), HasSubstr("tensor w box [0:4, 0:6]: its pieces hold 20 of 24"));
  const auto twice = PlanCopies(
      table, RegionList({Region::Whole(0, 0, {{0, 0}, {4, 5}}), Region::Whole(0, 0, {{0, 4}, {4, 2}})}),
      wanted);
  ASSERT_EQ(twice.status().kind(), StatusKind::kCorrupt);
  EXPECT_THAT(twice.status().message(), HasSubstr("hold 28 of 24"));
  EXPECT_FALSE(PlanCopies(table, RegionList({}), wanted).ok());
}

TEST(CopyProgramTest, ScalarsAndEmptyTensors) {
  TensorTable table = OneTensor({});
  table.tensors.push_back({{.name = "empty", .shape = {0, 3}}, Role::kWeight, Dtype::kF32});
  const RegionList whole({Region::Whole(0, 0, Box::Whole({})), Region::Whole(1, 0, Box::Whole({0, 3}))});
  const auto program = PlanCopies(table, whole, whole);
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_THAT(program->copies, ElementsAre(Copy{0, 0, 1}));
}

TEST(CopyProgramTest, CopiesAreSortedByTheRequestedPlace) {
  const TensorTable table = OneTensor({4});
  Region late = Region::Whole(0, 0, {{0}, {2}}), early = Region::Whole(0, 0, {{2}, {2}});
  late.offset = 4096;
  const RegionList there({late, early});
  auto program = PlanCopies(table, there, RegionList({Region::Whole(0, 0, {{0}, {4}})}));
  ASSERT_TRUE(program.ok());
  program->SortByPlace(there);
  EXPECT_THAT(program->copies, ElementsAre(Copy{1, 0, 2}, Copy{0, 0, 2}));
}

// Cuts a box into parts, each of those into flat ranges: tensor parallelism, then ZeRO.
void CutAtRandom(std::mt19937& rng, const Box& box, int depth, std::vector<Region>& regions) {
  if (depth > 0 && box.rank() > 0) {
    const auto dim = static_cast<int>(rng() % box.rank());
    if (box.extent[dim] > 1) {
      const uint64_t at = 1 + rng() % (box.extent[dim] - 1);
      Box first = box, second = box;
      first.extent[dim] = at;
      second.offset[dim] += at;
      second.extent[dim] -= at;
      CutAtRandom(rng, first, depth - 1, regions);
      return CutAtRandom(rng, second, depth - 1, regions);
    }
  }
  const uint64_t volume = box.Volume();
  for (uint64_t begin = 0; begin < volume;) {
    const uint64_t end = rng() % 2 == 0 ? volume : begin + 1 + rng() % (volume - begin);
    Region region = Region::Whole(0, static_cast<uint32_t>(regions.size()), box);
    region.range = {begin, end};
    regions.push_back(region);
    begin = end;
  }
}

// The elements of a region by their row-major index in the tensor, one at a time.
std::vector<uint64_t> ElementsOf(const Region& region, const Dims& shape) {
  std::vector<uint64_t> elements;
  for (const Segment& segment : Decompose(region.box, region.range))
    ForEachRun(segment.box, segment.box, Box::Whole(shape), [&](uint64_t, uint64_t to, uint64_t count) {
      for (uint64_t i = 0; i < count; ++i) elements.push_back(to + i);
    });
  return elements;
}

// Held against a table of who holds each element.
TEST(CopyProgramTest, EqualsAPlanOfSingleElements) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    Dims shape;
    for (int rank = static_cast<int>(rng() % 4); rank > 0; --rank) shape.push_back(1 + rng() % 6);
    std::vector<Region> there, wanted;
    CutAtRandom(rng, Box::Whole(shape), 3, there);
    CutAtRandom(rng, Box::Whole(shape), 3, wanted);
    std::vector<uint32_t> holder(shape.Volume());
    for (uint32_t i = 0; i < there.size(); ++i)
      for (const uint64_t element : ElementsOf(there[i], shape)) holder[element] = i;
    std::vector<Copy> expected;
    for (uint32_t to = 0; to < wanted.size(); ++to) {
      std::map<uint32_t, uint64_t> from;
      for (const uint64_t element : ElementsOf(wanted[to], shape)) ++from[holder[element]];
      for (const auto& [index, count] : from) expected.push_back({index, to, count});
    }
    const auto program = PlanCopies(OneTensor(shape), RegionList(there), RegionList(wanted));
    ASSERT_TRUE(program.ok()) << program.status().message();
    EXPECT_EQ(program->copies, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace cairn
