#include "runtime/data/sampler.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

Sampler Make(uint64_t total, uint64_t micro, uint64_t rank, uint64_t size) {
  return {.total_samples = total, .micro_batch_size = micro, .dp_rank = rank, .dp_size = size};
}

TEST(SamplerTest, RanksTakeTheirSharesOfEachWindow) {
  EXPECT_EQ(*Make(100, 2, 0, 3).MicroBatch(0, 0), (SampleRange{0, 2}));
  EXPECT_EQ(*Make(100, 2, 2, 3).MicroBatch(0, 0), (SampleRange{4, 6}));
  EXPECT_EQ(*Make(100, 2, 1, 3).MicroBatch(12, 1), (SampleRange{20, 22}));
}

// The same global batch for any data-parallel size: samples 24 to 47.
TEST(SamplerTest, AllTopologiesCoverTheSameGlobalBatchOnce) {
  for (const uint64_t dp_size : {1, 2, 3, 4, 6}) {
    for (const uint64_t micro : {1, 2}) {
      std::vector<int> uses(60);
      for (uint64_t rank = 0; rank < dp_size; ++rank) {
        const Sampler sampler = Make(60, micro, rank, dp_size);
        for (uint64_t m = 0; m < 24 / (micro * dp_size); ++m) {
          const auto range = sampler.MicroBatch(24, m);
          for (uint64_t i = range->begin; i < range->end; ++i) ++uses[i];
        }
      }
      for (uint64_t i = 0; i < 60; ++i) EXPECT_EQ(uses[i], i >= 24 && i < 48) << i << " of " << dp_size;
    }
  }
}

TEST(SamplerTest, PartialMicroBatchAtTheEndIsRefused) {
  EXPECT_TRUE(Make(12, 2, 0, 3).MicroBatch(6, 0).ok());
  EXPECT_FALSE(Make(11, 2, 0, 3).MicroBatch(6, 0).ok());
}

}  // namespace
}  // namespace cairn
