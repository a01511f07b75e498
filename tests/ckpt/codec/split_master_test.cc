#include "ckpt/codec/split_master.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ckpt/base/simd.h"
#include "tests/support/byte_spans.h"
#include "tests/support/long_form.h"
#include "tests/support/sanitized.h"

namespace cairn {
namespace {

bool IsNan(uint32_t x) { return (x & 0x7fffffff) > 0x7f800000; }

// Round to nearest, ties to even; NaNs as torch makes them.
CAIRN_SIMD_CLONES void Round(const uint32_t* master, size_t count, uint16_t* weight) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t m = master[i];
    const uint32_t rounded = (m + 0x7fff + (m >> 16 & 1)) >> 16;
    weight[i] = static_cast<uint16_t>((m & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
  }
}

// The proof: every fp32 pattern is restored, and the exceptions are exactly the ties below an odd high half,
// and NaNs. All patterns are tried in the long form. Otherwise one batch of seven, so that some have each
// sign and exponent: a batch has the low 20 bits of 32.
TEST(SplitMaster, JoinsEveryPossibleMaster) {
  constexpr size_t kBatch = 1 << 20;
  std::vector<uint32_t> master(kBatch), joined(kBatch);
  std::vector<uint16_t> weight(kBatch), low(kBatch);
  std::vector<MasterException> exceptions;
  const uint64_t step = kBatch * (IsLongForm() ? 1 : kSanitized ? 61 : 7);
  uint64_t ties = 0, numbers = 0;  // batches of numbers, not of NaNs
  for (uint64_t base = 0; base < uint64_t{1} << 32; base += step) {
    for (size_t i = 0; i < kBatch; ++i) master[i] = static_cast<uint32_t>(base + i);
    numbers += (base & 0x7f800000) != 0x7f800000;
    Round(master.data(), kBatch, weight.data());
    ASSERT_TRUE(SplitMaster(In(weight), In(master), Out(low), kBatch, exceptions));
    JoinMaster(In(weight), In(low), exceptions, Out(joined));
    ASSERT_EQ(std::memcmp(master.data(), joined.data(), kBatch * 4), 0) << base;
    for (const MasterException& e : exceptions) {
      const uint32_t m = master[e.index];
      ASSERT_EQ(e.high, m >> 16);
      if (IsNan(m)) continue;
      ASSERT_EQ(m & 0x1ffff, 0x18000u) << m;
      ++ties;
    }
  }
  EXPECT_EQ(ties, numbers * (kBatch >> 17));  // one per pair of high halves
}

// Any two arrays round-trip, rounded or not, if the list of exceptions may grow.
TEST(SplitMaster, AnyWeightsRoundTrip) {
  std::mt19937_64 random(1);
  for (const size_t count : {0u, 1u, 5u, 4096u, 10'007u}) {
    std::vector<uint32_t> master(count), joined(count);
    std::vector<uint16_t> weight(count), low(count);
    for (uint32_t& m : master) m = static_cast<uint32_t>(random());
    for (uint16_t& w : weight) w = static_cast<uint16_t>(random());
    std::vector<MasterException> exceptions = {{7, 7}};
    ASSERT_TRUE(SplitMaster(In(weight), In(master), Out(low), count, exceptions));
    JoinMaster(In(weight), In(low), exceptions, Out(joined));
    EXPECT_EQ(master, joined);
    EXPECT_EQ(SplitMaster(In(weight), In(master), Out(low), count / 2, exceptions), count == 0);
  }
}

TEST(SplitMaster, ExceptionsBeyondTheArrayAreIgnored) {
  std::vector<uint32_t> master(3, 0x3f800000);
  std::vector<uint16_t> weight(3, 0x3f80), low(3, 0);
  const std::vector<MasterException> exceptions = {{2, 0x1234}, {3, 1}, {UINT32_MAX, 1}};
  std::vector<uint32_t> joined(3);
  JoinMaster(In(weight), In(low), exceptions, Out(joined));
  EXPECT_EQ(joined, (std::vector<uint32_t>{0x3f800000, 0x3f800000, 0x12340000}));
}

}  // namespace
}  // namespace cairn
