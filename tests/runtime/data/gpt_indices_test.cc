#include "runtime/data/gpt_indices.h"

#include <gtest/gtest.h>

#include <numeric>

namespace cairn {
namespace {

using Ids = std::vector<uint32_t>;
using Starts = std::vector<SampleStart>;

struct Indices {
  EpochPlan plan;
  Ids documents;
  Starts samples;
  Ids shuffle;
};

Indices Build(const std::vector<int32_t>& lengths, SequenceRange range, uint64_t num_samples,
              uint64_t seq_length, uint32_t seed) {
  const std::vector<int32_t> part(lengths.begin() + range.begin, lengths.begin() + range.end);
  const auto plan =
      PlanEpochs(std::accumulate(part.begin(), part.end(), uint64_t{0}), num_samples, seq_length);
  EXPECT_TRUE(plan.ok());
  NumpyShuffler shuffler(seed);
  Indices indices{*plan, BuildDocumentIndex(range, *plan, shuffler), {}, {}};
  indices.samples = BuildSampleIndex(part, range.begin, indices.documents, seq_length, plan->samples);
  indices.shuffle = BuildShuffleIndex(*plan, shuffler);
  return indices;
}

const std::vector<int32_t> kLengths{5, 7, 3, 6, 0, 9, 4, 12};

TEST(GptIndicesTest, SampleIndexFollowsTheWorkedExample) {
  const std::vector<int32_t> lengths{5, 7, 3, 6};
  EXPECT_EQ(BuildSampleIndex(lengths, 0, Ids{2, 0, 3, 1}, 4, 5),
            (Starts{{0, 0}, {1, 1}, {2, 0}, {2, 4}, {3, 2}, {3, 6}}));
}

// The three tables below were computed by megatron-core 0.16.1's own functions and its compiled helper.
TEST(GptIndicesTest, OneEpochOfAPartEqualsMegatron) {
  const Indices indices = Build(kLengths, {1, 8}, 9, 4, 1234);
  EXPECT_EQ(indices.plan.epochs, 1u);
  EXPECT_EQ(indices.documents, (Ids{3, 2, 7, 1, 5, 6, 4}));
  EXPECT_EQ(
      indices.samples,
      (Starts{{0, 0}, {0, 4}, {1, 2}, {2, 3}, {2, 7}, {2, 11}, {3, 3}, {4, 0}, {4, 4}, {4, 8}, {5, 3}}));
  EXPECT_EQ(indices.shuffle, (Ids{8, 5, 6, 0, 4, 3, 2, 9, 7, 1}));
}

TEST(GptIndicesTest, SeparateFinalEpochEqualsMegatron) {
  const Indices indices = Build(kLengths, {0, 8}, 14, 4, 99);
  EXPECT_EQ(indices.plan.epochs, 2u);
  EXPECT_TRUE(indices.plan.separate_final);
  EXPECT_EQ(indices.documents, (Ids{6, 2, 4, 5, 0, 7, 3, 1, 0, 6, 2, 3, 1, 7, 5, 4}));
  EXPECT_EQ(indices.samples, (Starts{{0, 0},  {1, 0},  {3, 1},  {3, 5},  {4, 0},  {4, 4},  {5, 3},  {5, 7},
                                     {5, 11}, {6, 3},  {7, 1},  {7, 5},  {8, 2},  {9, 1},  {10, 1}, {11, 2},
                                     {12, 0}, {12, 4}, {13, 1}, {13, 5}, {13, 9}, {14, 1}, {14, 5}}));
  EXPECT_EQ(indices.shuffle,
            (Ids{8, 4, 2, 10, 6, 3, 5, 0, 9, 1, 7, 20, 11, 18, 16, 17, 13, 14, 12, 15, 21, 19}));
}

TEST(GptIndicesTest, NearlyFullFinalEpochIsMixedInAsMegatronDoes) {
  const Indices indices = Build(kLengths, {0, 8}, 20, 4, 7);
  EXPECT_EQ(indices.plan.epochs, 2u);
  EXPECT_FALSE(indices.plan.separate_final);
  EXPECT_EQ(indices.documents, (Ids{0, 5, 2, 2, 4, 0, 1, 6, 5, 7, 3, 3, 6, 1, 4, 7}));
  EXPECT_EQ(indices.shuffle,
            (Ids{2, 18, 1, 9, 13, 21, 15, 14, 5, 3, 19, 10, 17, 11, 0, 12, 20, 16, 4, 6, 7, 8}));
}

TEST(GptIndicesTest, TakesTheFewestEpochsThatSuffice) {
  // 4 samples of 5 tokens and one more token: 21.
  EXPECT_EQ(PlanEpochs(21, 4, 5)->epochs, 1u);
  EXPECT_EQ(PlanEpochs(20, 4, 5)->epochs, 2u);
  EXPECT_EQ(PlanEpochs(1, 4, 5)->epochs, 21u);
}

TEST(GptIndicesTest, ImpossibleRequestsAreRefused) {
  EXPECT_FALSE(PlanEpochs(0, 1, 1).ok());
  EXPECT_FALSE(PlanEpochs(10, 0, 1).ok());
  EXPECT_FALSE(PlanEpochs(10, 1, 0).ok());
  EXPECT_FALSE(PlanEpochs(10, uint64_t{1} << 40, uint64_t{1} << 40).ok());
}

}  // namespace
}  // namespace cairn
