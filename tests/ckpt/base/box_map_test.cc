#include "ckpt/base/box_map.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/random_box_map.h"

namespace cairn {
namespace {

TEST(BoxMapTest, MapsABoxOfTheTensorToTheArray) {
  const BoxMap rows{{{4, 0}, {2, 3}}, {{10, 0}, {2, 3}}};  // rows 4 and 5 are the array's 10 and 11
  EXPECT_EQ(rows.ToArray({{5, 1}, {1, 2}}), (Box{{11, 1}, {1, 2}}));
  const BoxMap columns{{{4, 0}, {2, 3}}, {{0, 8}, {3, 2}}, kLastTwoSwapped};
  EXPECT_EQ(columns.ToArray({{5, 1}, {1, 2}}), (Box{{1, 9}, {2, 1}}));
  EXPECT_EQ(columns.ToArray(columns.box), columns.in_array);
}

TEST(BoxMapTest, FitsOnlyIfBothBoxesLieInTheirShapes) {
  const BoxMap rows{{{4, 0}, {2, 3}}, {{10, 0}, {2, 3}}};
  EXPECT_TRUE(rows.Fits({6, 3}, {12, 3}));
  EXPECT_FALSE(rows.Fits({5, 3}, {12, 3}));
  EXPECT_FALSE(rows.Fits({6, 3}, {11, 3}));
  EXPECT_FALSE(rows.Fits({6, 3, 1}, {12, 3}));
  const BoxMap columns{{{0, 0}, {2, 3}}, {{0, 0}, {3, 2}}, kLastTwoSwapped};
  EXPECT_TRUE(columns.Fits({2, 3}, {3, 2}));
  EXPECT_FALSE((BoxMap{columns.box, columns.in_array}).Fits({2, 3}, {3, 2}));
  EXPECT_TRUE((BoxMap{}).Fits({}, {})) << "scalars";
  EXPECT_FALSE((BoxMap{{{0}, {2}}, {{0}, {2}}, kLastTwoSwapped}).Fits({2}, {2})) << "a vector";
  EXPECT_FALSE((BoxMap{rows.box, rows.in_array, {0, 0, 2, 3, 4, 5, 6, 7}}).Fits({6, 3}, {12, 3}));
}

// Expert 3 of layer 2, [out, in], in an array [layers, experts, in, out].
TEST(BoxMapTest, LeadingAxesOfExtentOneAreDropped) {
  const BoxMap map = BoxMap{Box::Whole({5, 7}), {{2, 3, 0, 0}, {1, 1, 5, 7}}}.Transposed();
  EXPECT_TRUE(map.Fits({5, 7}, {4, 8, 7, 5}));
  EXPECT_FALSE(map.Fits({5, 7}, {4, 3, 7, 5}));
  EXPECT_EQ(map.ToArray({{4, 1}, {1, 2}}), (Box{{2, 3, 1, 4}, {1, 1, 2, 1}}));
  EXPECT_EQ(map.Inverse().ToArray({{2, 3, 1, 4}, {1, 1, 2, 1}}), (Box{{4, 1}, {1, 2}}));
  EXPECT_FALSE((BoxMap{Box::Whole({5, 7}), {{2, 3, 0, 0}, {1, 2, 5, 7}}}).Fits({5, 7}, {4, 8, 5, 7}));
}

// Gates [experts, ffn, hidden] are the even columns of an array [experts, hidden, 2 ffn].
TEST(BoxMapTest, EveryOtherColumnIsABoxOfTheArrayWithOneMoreAxis) {
  const uint64_t experts = 2, ffn = 3, hidden = 4;
  const Box whole = Box::Whole({experts, ffn, hidden});
  const BoxMap gate{whole, {{0, 0, 0, 0}, {experts, hidden, ffn, 1}}, {3, 1, 0, 2, 4, 5, 6, 7}};
  ASSERT_TRUE(gate.Fits({experts, ffn, hidden}, {experts, hidden, ffn, 2}));
  const BoxLoops of = LoopsOf(gate, whole, whole, Box::Whole({experts, hidden, ffn, 2}));
  std::vector<uint64_t> columns;
  ForEach(of.loops, of.in_array, of.in_tensor, [&](uint64_t array, uint64_t tensor) {
    const uint64_t expert = tensor / (ffn * hidden), row = tensor / hidden % ffn, column = tensor % hidden;
    EXPECT_EQ(array, (expert * hidden + column) * 2 * ffn + 2 * row);
    columns.push_back(array);
  });
  EXPECT_EQ(columns.size(), experts * ffn * hidden);
  EXPECT_TRUE(std::ranges::is_sorted(columns));
}

TEST(BoxMapTest, LoopsThatContinueEachOtherAreOne) {
  const Box rows{{1, 0, 0}, {2, 3, 4}};
  EXPECT_EQ(LoopsOf({rows, rows}, rows, rows, Box::Whole({5, 3, 4})).loops.size(), 1u);
  EXPECT_EQ(LoopsOf({rows, rows}, rows, rows, Box::Whole({5, 3, 6})).loops.size(), 2u);
  EXPECT_EQ(LoopsOf({}, {}, {}, {}).loops.size(), 1u) << "a number";
}

TEST(BoxMapTest, EveryElementIsWhereAPlainLoopFindsIt) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 rng(seed);
    const RandomBoxMap drawn = DrawBoxMap(rng, 4);
    const BoxMap& map = drawn.map;
    ASSERT_TRUE(map.Fits(drawn.tensor, drawn.array)) << seed;
    ASSERT_TRUE(map.Inverse().Fits(drawn.array, drawn.tensor)) << seed;
    EXPECT_EQ(map.ToArray(map.box), map.in_array) << seed;
    Box common = RandomBox(rng, map.box.extent);
    for (int i = 0; i < common.rank(); ++i) common.offset[i] += map.box.offset[i];
    const Box place = map.ToArray(common);
    EXPECT_EQ(map.Inverse().ToArray(place), common) << seed;
    const Box tensor = Box::Whole(drawn.tensor), array = Box::Whole(drawn.array);
    std::map<uint64_t, uint64_t> wanted, found;  // element of the array: that of the tensor
    for (uint64_t i = 0; i < common.Volume(); ++i) {
      const Dims point = ElementAt(common, i).offset;
      EXPECT_TRUE(Contains(place, {drawn.Find(point), Dims::Filled(place.rank(), 1)})) << seed;
      wanted[FlatIndex(array, drawn.Find(point))] = FlatIndex(tensor, point);
    }
    const BoxLoops of = LoopsOf(map, common, tensor, array);
    ForEach(of.loops, of.in_array, of.in_tensor, [&](uint64_t in_array, uint64_t in_tensor) {
      EXPECT_TRUE(found.empty() || found.rbegin()->first < in_array) << seed << ": not in the array's order";
      found[in_array] = in_tensor;
    });
    ASSERT_EQ(found, wanted) << seed;
  }
}

}  // namespace
}  // namespace cairn
