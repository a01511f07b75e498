#include "ckpt/derived_weight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "ckpt/cast.h"
#include "ckpt/simd.h"

namespace cairn {
namespace {

template <typename T>
std::span<const std::byte> In(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <typename T>
std::span<std::byte> Out(std::vector<T>& values) {
  return std::as_writable_bytes(std::span(values));
}

// To nearest, ties to even, by an addition of which the last place is the result's; a NaN keeps its sign and
// the upper bits of its payload.
CAIRN_SIMD_CLONES void Round(const uint32_t* master, size_t count, uint16_t* weight) {
  constexpr uint32_t kTooLarge = 0x47800000;  // 2^16
  for (size_t i = 0; i < count; ++i) {
    const uint32_t m = master[i] & 0x7fffffff;
    const uint32_t finite = m < kTooLarge ? m : kTooLarge;
    const uint32_t exponent = finite >> 23 < 113 ? 113 : finite >> 23;  // 113: of the smallest normal half
    const uint32_t unit = (exponent + 13) << 23;
    const float sum = std::bit_cast<float>(finite) + std::bit_cast<float>(unit);
    const uint32_t rounded = std::bit_cast<uint32_t>(sum) - unit + ((exponent - 113) << 10);
    const uint32_t magnitude = m > 0x7f800000 ? 0x7e00 | (m >> 13 & 0x1ff) : rounded;
    weight[i] = static_cast<uint16_t>(magnitude | (master[i] >> 16 & 0x8000));
  }
}

// Sanitizers make it slow and what they look for is the same in every part.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kOneBatchIn = 61;
#else
constexpr uint64_t kOneBatchIn = 1;
#endif

// The proof: of every fp32 pattern, what is derived is what another way of rounding and the cast give, and
// needs no exception.
TEST(DerivedWeight, HoldsForEveryMaster) {
  constexpr size_t kBatch = 1 << 20;
  std::vector<uint32_t> master(kBatch);
  std::vector<uint16_t> weight(kBatch), cast(kBatch), derived(kBatch);
  std::vector<MasterException> exceptions;
  for (uint64_t base = 0; base < uint64_t{1} << 32; base += kBatch * kOneBatchIn) {
    for (size_t i = 0; i < kBatch; ++i) master[i] = static_cast<uint32_t>(base + i);
    Round(master.data(), kBatch, weight.data());
    ASSERT_TRUE(FindUnderived(In(master), In(weight), 0, exceptions)) << base;
    DeriveWeight(In(master), {}, Out(derived));
    ASSERT_EQ(std::memcmp(weight.data(), derived.data(), kBatch * 2), 0) << base;
    Cast(Dtype::kF32, In(master), Dtype::kF16, Out(cast), OnOverflow::kInfinity);
    ASSERT_EQ(std::memcmp(cast.data(), derived.data(), kBatch * 2), 0) << base;
  }
}

// Any two arrays come back, rounded or not, as long as the list is allowed to grow.
TEST(DerivedWeight, IsLosslessWhateverTheWeight) {
  std::mt19937_64 random(1);
  for (const size_t count : {0u, 1u, 5u, 4096u, 10'007u}) {
    std::vector<uint32_t> master(count);
    std::vector<uint16_t> weight(count), derived(count);
    for (uint32_t& m : master) m = static_cast<uint32_t>(random());
    for (uint16_t& w : weight) w = static_cast<uint16_t>(random());
    std::vector<MasterException> exceptions = {{7, 7}};
    ASSERT_TRUE(FindUnderived(In(master), In(weight), count, exceptions));
    EXPECT_TRUE(std::ranges::is_sorted(exceptions, {}, &MasterException::index));
    DeriveWeight(In(master), exceptions, Out(derived));
    EXPECT_EQ(weight, derived);
    EXPECT_EQ(FindUnderived(In(master), In(weight), count / 2, exceptions), count == 0);
  }
}

TEST(DerivedWeight, ListsExactlyWhatIsNotRounded) {
  std::mt19937_64 random(1);
  std::vector<uint32_t> master(10'007);
  for (uint32_t& m : master) m = static_cast<uint32_t>(random());
  std::vector<uint16_t> weight(master.size()), derived(master.size());
  Round(master.data(), master.size(), weight.data());
  std::vector<MasterException> expected, exceptions;
  for (const uint32_t index : {0u, 4095u, 4096u, 9000u, 10'006u}) {
    weight[index] ^= 1 << random() % 16;
    expected.push_back({index, weight[index]});
  }
  ASSERT_TRUE(FindUnderived(In(master), In(weight), expected.size(), exceptions));
  EXPECT_EQ(exceptions, expected);
  DeriveWeight(In(master), exceptions, Out(derived));
  EXPECT_EQ(weight, derived);
  EXPECT_FALSE(FindUnderived(In(master), In(weight), expected.size() - 1, exceptions));
}

TEST(DerivedWeight, ExceptionsBeyondTheArrayAreIgnored) {
  const std::vector<uint32_t> master(3, 0x3f800000);
  std::vector<uint16_t> weight(3);
  const std::vector<MasterException> exceptions = {{2, 0x1234}, {3, 1}, {UINT32_MAX, 1}};
  DeriveWeight(In(master), exceptions, Out(weight));
  EXPECT_EQ(weight, (std::vector<uint16_t>{0x3c00, 0x3c00, 0x1234}));
}

}  // namespace
}  // namespace cairn
