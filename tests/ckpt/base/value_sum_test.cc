#include "ckpt/base/value_sum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace cairn {
namespace {

uint64_t Plain(const std::vector<std::byte>& bytes, size_t at, uint64_t rows, uint64_t columns, size_t size) {
  uint64_t sum = 0;
  for (uint64_t row = 0; row < rows; ++row)
    for (uint64_t column = 0; column < columns; ++column, at += size) {
      int64_t element = 0;
      std::memcpy(&element, bytes.data() + at, size);
      const auto unused = static_cast<int>(64 - 8 * size);
      sum += (2 * row + 1) * static_cast<uint64_t>(element << unused >> unused);
    }
  return sum;
}

TEST(ValueSumTest, AnyFlippedBitChangesIt) {
  std::mt19937_64 random(5);
  for (const size_t size : {1, 2, 4, 8})
    for (const auto& [rows, columns] :
         {std::pair{1, 1}, {3, 5}, {1, 40000}, {2, 16384}, {7, 16385}, {900, 3}, {0, 4}}) {
      const size_t at = random() % 7;  // of any alignment
      std::vector<std::byte> bytes(at + static_cast<size_t>(rows * columns) * size);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      const auto sum = [&] {
        return ValueSum(bytes.data() + at, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), size);
      };
      const uint64_t before = sum();
      EXPECT_EQ(before, Plain(bytes, at, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), size));
      for (int flip = 0; flip < 20 && rows > 0; ++flip) {
        std::byte& byte = bytes[at + random() % (bytes.size() - at)];
        const std::byte bit{static_cast<unsigned char>(1 << random() % 8)};
        byte ^= bit;
        EXPECT_NE(sum(), before) << size << " " << rows << " " << columns;
        byte ^= bit;
      }
    }
}

TEST(ValueSumTest, ItDependsOnTheRow) {
  const int32_t values[] = {1, 2, 3, 4}, swapped[] = {3, 4, 1, 2};
  EXPECT_NE(ValueSum(values, 2, 2, 4), ValueSum(swapped, 2, 2, 4));
  EXPECT_EQ(ValueSum(values, 2, 2, 4), 1 + 2 + 3 * (3 + 4));
}

}  // namespace
}  // namespace cairn
