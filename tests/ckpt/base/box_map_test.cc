#include "ckpt/base/box_map.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(BoxMapTest, ABoxOfTheTensorIsFoundInTheArray) {
  const BoxMap rows{{{4, 0}, {2, 3}}, {{10, 0}, {2, 3}}};  // rows 4 and 5 are the array's 10 and 11
  EXPECT_EQ(rows.ToArray({{5, 1}, {1, 2}}), (Box{{11, 1}, {1, 2}}));
  const BoxMap columns{{{4, 0}, {2, 3}}, {{0, 8}, {3, 2}}, true};
  EXPECT_EQ(columns.ToArray({{5, 1}, {1, 2}}), (Box{{1, 9}, {2, 1}}));
  EXPECT_EQ(columns.ToArray(columns.box), columns.in_array);
}

TEST(BoxMapTest, BothBoxesLieInTheirShapesAndHaveTheSameElements) {
  const BoxMap rows{{{4, 0}, {2, 3}}, {{10, 0}, {2, 3}}};
  EXPECT_TRUE(rows.Fits({6, 3}, {12, 3}));
  EXPECT_FALSE(rows.Fits({5, 3}, {12, 3}));
  EXPECT_FALSE(rows.Fits({6, 3}, {11, 3}));
  EXPECT_FALSE(rows.Fits({6, 3, 1}, {12, 3}));
  const BoxMap columns{{{0, 0}, {2, 3}}, {{0, 0}, {3, 2}}, true};
  EXPECT_TRUE(columns.Fits({2, 3}, {3, 2}));
  EXPECT_FALSE((BoxMap{columns.box, columns.in_array, false}).Fits({2, 3}, {3, 2}));
  EXPECT_TRUE((BoxMap{}).Fits({}, {})) << "scalars";
  EXPECT_FALSE((BoxMap{{{0}, {2}}, {{0}, {2}}, true}).Fits({2}, {2})) << "a vector has no transpose";
}

}  // namespace
}  // namespace cairn
