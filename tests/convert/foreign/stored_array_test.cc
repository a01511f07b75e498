#include "convert/foreign/stored_array.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

// Four elements in file 0, a hole of two, four elements in file 1.
StoredArray FlatArray() { return {"flat", Dtype::kF32, {10}, {{{0, 4}, 0, 100}, {{6, 10}, 1, 200}}}; }

std::vector<std::tuple<uint64_t, uint64_t, uint32_t, uint64_t>> ExtentsOf(const StoredArray& array) {
  std::vector<std::tuple<uint64_t, uint64_t, uint32_t, uint64_t>> extents;
  for (const auto& [range, file, offset] : array.extents)
    extents.emplace_back(range.begin, range.end, file, offset);
  return extents;
}

TEST(StoredArray, ASliceCanSpanExtentsAndHoles) {
  const StoredArray slice = StretchOf(FlatArray(), 2, {3, 2});
  EXPECT_EQ(slice.shape, (Dims{3, 2}));
  EXPECT_EQ(ExtentsOf(slice), (decltype(ExtentsOf(slice)){{0, 2, 0, 108}, {4, 6, 1, 200}}));
  EXPECT_EQ(slice.elements(), 4);
  EXPECT_EQ(slice.bytes(), 16);
}

TEST(StoredArray, AnEmptySliceHasNoExtents) {
  EXPECT_TRUE(StretchOf(FlatArray(), 2, {0}).extents.empty());
  EXPECT_TRUE(StretchOf(FlatArray(), 4, {2}).extents.empty());
  EXPECT_TRUE(StretchOf(FlatArray(), 20, {2}).extents.empty());
}

TEST(StoredArray, AppendsSlicesInOrder) {
  StoredArray whole{"whole", Dtype::kF32, {8}};
  Append(whole, StretchOf(FlatArray(), 6, {4}), 0);
  Append(whole, StretchOf(FlatArray(), 0, {4}), 4);
  EXPECT_EQ(ExtentsOf(whole), (decltype(ExtentsOf(whole)){{0, 4, 1, 200}, {4, 8, 0, 100}}));
}

TEST(StoredArray, TransposedArraysHaveTheTensorsShape) {
  StoredArray array{"w", Dtype::kBF16, {3, 5}};
  EXPECT_EQ(array.tensor_shape(), (Dims{3, 5}));
  array.transposed = true;
  EXPECT_EQ(array.tensor_shape(), (Dims{5, 3}));
  EXPECT_EQ(array.type_name(), "bf16");
  array.unknown_type = "C64";
  EXPECT_EQ(array.type_name(), "C64");
}

}  // namespace
}  // namespace cairn
