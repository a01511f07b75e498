#include "ckpt/codec/derived_weight.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>

#include "ckpt/codec/cast.h"
#include "tests/support/byte_spans.h"
#include "tests/support/long_form.h"
#include "tests/support/sanitized.h"

namespace cairn {
namespace {

// By the processor if it can: independent of our code.
[[gnu::target("f16c")]] void RoundByProcessor(const std::vector<uint32_t>& master,
                                              std::vector<uint16_t>& weight) {
  for (size_t i = 0; i < master.size(); ++i)
    weight[i] = _cvtss_sh(std::bit_cast<float>(master[i]), _MM_FROUND_TO_NEAREST_INT);
}

void RoundDerived(const std::vector<uint32_t>& master, std::vector<uint16_t>& weight) {
  if (__builtin_cpu_supports("f16c")) return RoundByProcessor(master, weight);
  Cast(Dtype::kF32, In(master), Dtype::kF16, Out(weight), OnOverflow::kInfinity);
}

// The proof: the half derived from any fp32 pattern is the rounded one, and needs no exception. All patterns
// are tried in the long form. Otherwise one batch of seven, so that some have each sign and exponent: a batch
// has the low 20 bits of 32.
TEST(DerivedWeight, EqualsTheRoundedWeightOfEveryMaster) {
  constexpr size_t kBatch = 1 << 20;
  std::vector<uint32_t> master(kBatch);
  std::vector<uint16_t> weight(kBatch), derived(kBatch);
  std::vector<MasterException> exceptions;
  const uint64_t step = kBatch * (IsLongForm() ? 1 : kSanitized ? 61 : 7);
  for (uint64_t base = 0; base < uint64_t{1} << 32; base += step) {
    for (size_t i = 0; i < kBatch; ++i) master[i] = static_cast<uint32_t>(base + i);
    RoundDerived(master, weight);
    ASSERT_TRUE(FindUnderived(In(master), In(weight), 0, exceptions)) << base;
    DeriveWeight(In(master), {}, Out(derived));
    ASSERT_EQ(std::memcmp(weight.data(), derived.data(), kBatch * 2), 0) << base;
  }
}

// Any two arrays round-trip, rounded or not, if the list of exceptions may grow.
TEST(DerivedWeight, AnyWeightsRoundTrip) {
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

TEST(DerivedWeight, ListsExactlyTheWeightsThatAreNotRounded) {
  std::mt19937_64 random(1);
  std::vector<uint32_t> master(10'007);
  for (uint32_t& m : master) m = static_cast<uint32_t>(random());
  std::vector<uint16_t> weight(master.size()), derived(master.size());
  RoundDerived(master, weight);
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
