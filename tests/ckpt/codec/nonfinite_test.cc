#include "ckpt/codec/nonfinite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace cairn {
namespace {

template <typename Bits>
std::vector<std::byte> Bytes(const std::vector<Bits>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Bits));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

TEST(NonFiniteTest, CountsInfinitiesAndNansOfEachType) {
  // Largest finite value, both infinities, a quiet NaN, a NaN that differs from infinity in its last bit, 0.
  EXPECT_EQ(
      CountNonFinite(Dtype::kF64, Bytes<uint64_t>({0x7fefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
                                                   0x7ff8000000000000, 0x7ff0000000000001, 0})),
      4u);
  EXPECT_EQ(CountNonFinite(Dtype::kF32,
                           Bytes<uint32_t>({0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0})),
            4u);
  EXPECT_EQ(CountNonFinite(Dtype::kF16, Bytes<uint16_t>({0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0})), 4u);
  EXPECT_EQ(CountNonFinite(Dtype::kBF16, Bytes<uint16_t>({0x7f7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81, 0})), 4u);
  EXPECT_EQ(CountNonFinite(Dtype::kF8E5M2, Bytes<uint8_t>({0x7b, 0x7c, 0xfc, 0x7e, 0x7d, 0})), 4u);
  EXPECT_EQ(CountNonFinite(Dtype::kF8E4M3, Bytes<uint8_t>({0x7e, 0x7f, 0xff, 0x78, 0})), 2u);
  EXPECT_EQ(CountNonFinite(Dtype::kI32, Bytes<uint32_t>({0x7f800000, 0xffffffff})), 0u);
}

// One value at a time, over blocks, their ends and every alignment.
TEST(NonFiniteTest, FindsANonFiniteValueAtAnyPosition) {
  for (const size_t count : {1, 7, 191, 192, 193, 16383, 16384, 16385, 40000}) {
    for (const size_t at : {size_t{0}, count / 2, count - 1}) {
      for (size_t shift = 0; shift < 4; ++shift) {
        std::vector<uint16_t> values(count, 0x3f80);
        values[at] = 0xff80;
        std::vector<std::byte> bytes(shift);
        const std::vector<std::byte> elements = Bytes(values);
        bytes.insert(bytes.end(), elements.begin(), elements.end());
        EXPECT_EQ(CountNonFinite(Dtype::kBF16, std::span(bytes).subspan(shift)), 1u)
            << count << " elements, " << at;
      }
    }
  }
}

TEST(NonFiniteTest, CountsAcrossBlocks) {
  EXPECT_EQ(CountNonFinite(Dtype::kBF16, Bytes(std::vector<uint16_t>(100'000, 0x7fc0))), 100'000u);
  EXPECT_EQ(CountNonFinite(Dtype::kF8E5M2, Bytes(std::vector<uint8_t>(100'001, 0xfc))), 100'001u);
}

}  // namespace
}  // namespace cairn
