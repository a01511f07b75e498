#include "convert/foreign/transpose.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/random_box_map.h"

namespace cairn {
namespace {

// Element i has the value i + 1, in `size` bytes.
std::vector<std::byte> Numbered(uint64_t count, uint64_t size) {
  std::vector<std::byte> bytes(count * size);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t value = i + 1;
    std::memcpy(&bytes[i * size], &value, size);
  }
  return bytes;
}

// Maps the part `common` of what is in memory, the box `have`, and compares the array with that of a plain
// loop.
void ExpectMapped(BoxTransposer& transposer, const RandomBoxMap& drawn, const Box& common, const Box& have,
                  uint64_t size) {
  const std::vector<std::byte> bytes = Numbered(have.Volume(), size);
  const Box array = Box::Whole(drawn.array);
  std::vector<std::byte> wanted(array.Volume() * size), found(wanted.size());
  for (uint64_t i = 0; i < common.Volume(); ++i) {
    const Dims point = ElementAt(common, i).offset;
    std::memcpy(&wanted[FlatIndex(array, drawn.Find(point)) * size], &bytes[FlatIndex(have, point) * size],
                size);
  }
  transposer.MapRuns(drawn.map, common, have, bytes, array, [&](uint64_t at, std::span<const std::byte> run) {
    std::ranges::copy(run, &found[at * size]);
  });
  EXPECT_EQ(found, wanted) << ToString(drawn.map.box) << " in " << ToString(drawn.array);
}

TEST(BoxTransposer, MapsAnyPartOfAnyMap) {
  BoxTransposer transposer;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 rng(seed);
    const RandomBoxMap drawn = DrawBoxMap(rng, 5);
    const auto part = [&](const Box& of) {
      Box box = RandomBox(rng, of.extent);
      for (int i = 0; i < box.rank(); ++i) box.offset[i] += of.offset[i];
      return box;
    };
    const Box have = part(Box::Whole(drawn.tensor));
    if (const auto common = Intersect(have, drawn.map.box))
      ExpectMapped(transposer, drawn, part(*common), have, 1 << rng() % 4);
  }
}

// Larger than a tile, and cut off in the middle of one.
TEST(BoxTransposer, TransposesEachMatrixOfAStack) {
  BoxTransposer transposer;
  const Box whole = Box::Whole({2, 3, 70, 50});
  for (const uint64_t size : {1, 2, 4, 8})
    ExpectMapped(transposer, {whole.extent, {2, 3, 50, 70}, BoxMap{whole, whole}.Transposed(), {0, 1, 3, 2}},
                 {{0, 0, 5, 3}, {2, 3, 61, 40}}, whole, size);
}

}  // namespace
}  // namespace cairn
