// The goals of prediction on runs that were left out of the fit, and what must hold wherever it extrapolates.
#include "tools/plan/calibration.h"

#include <gtest/gtest.h>

#include "tests/bench/cross_validation.h"

namespace cairn {
namespace {

class CalibrationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = *FindCluster("jean-zay");
    rows_ = *BuiltInRuns("jean-zay");
    calibration_ = *Calibrate(rows_, cluster_);
  }

  // 181 B over 48 nodes, measured as 120.2 s and 55 GB.
  static ModelShape Shape() { return {.layers = 72, .hidden = 14336, .heads = 64, .vocab = 250000}; }
  static RunSetup Known() { return {384, 8, 6, 8, 1, 4, 2048, 1}; }
  static Prediction Of(const RunSetup& setup) { return Predict(Shape(), setup, cluster_, calibration_); }

  static inline Cluster cluster_;
  static inline std::vector<RunRow> rows_;
  static inline Calibration calibration_;
};

TEST_F(CalibrationTest, PredictsTablesThatWereLeftOut) {
  std::vector<std::string> groups;
  for (const RunRow& row : rows_) groups.push_back(row.group);
  const auto held = CrossValidate(rows_, groups, cluster_);
  ASSERT_TRUE(held.ok());
  const HeldOut all = SumOf(*held);
  EXPECT_LE(all.time.Median(), 0.06);
  EXPECT_LE(all.memory.Median(), 0.08);
  EXPECT_LE(all.time.Worst(), 0.25);
  // One row has 65 GB at a micro-batch of 2, the next 56 GB at 4; no model fits both.
  EXPECT_EQ(std::count_if(all.memory.all.begin(), all.memory.all.end(), [](double e) { return e > 0.25; }),
            1);
  EXPECT_GE(all.right_calls * 10, all.calls * 9);
  // Bounds are for 9 of 10.
  EXPECT_GE(all.within_time * 100, 85 * static_cast<int>(all.time.all.size()));
  EXPECT_GE(all.within_memory * 100, 85 * static_cast<int>(all.memory.all.size()));
  EXPECT_LT(all.time.Median(), all.plain_time.Median() / 4);
  for (const HeldOut& group : *held) EXPECT_LE(group.best_rank, 3) << group.group;
}

TEST_F(CalibrationTest, RowsOfOneConfigurationShareAWeight) {
  RunRow a = rows_[0];
  a.setup = Known();
  std::vector<RunRow> rows(6, a);  // two the same, and four that differ from these
  rows[2].setup.virtual_stages = 2;
  rows[3].setup.precision = Precision::kFp16;
  rows[4].setup.flash_attention = true;
  rows[5].shape.modules = kLlamaModules;
  std::vector<const RunRow*> pointers;
  for (const RunRow& row : rows) pointers.push_back(&row);
  EXPECT_EQ(RowWeights(pointers), (std::vector<double>{0.5, 0.5, 1, 1, 1, 1}));
}

TEST_F(CalibrationTest, TheKnownRunLiesWithinItsBounds) {
  const Prediction p = Of(Known());
  EXPECT_LT(p.seconds.low, 120.18);
  EXPECT_GT(p.seconds.high, 120.18);
  EXPECT_LT(p.memory_gb.low, 55);
  EXPECT_GT(p.memory_gb.high, 55);
  EXPECT_TRUE(p.fits);
}

TEST_F(CalibrationTest, WithoutMeasurementsUsesThePriors) {
  const auto calibration = Calibrate({}, cluster_);
  ASSERT_TRUE(calibration.ok());
  for (const auto& info : TimeConstantInfos())
    EXPECT_NEAR(calibration->time.constants.*info.field / info.mean, 1, 1e-6) << info.mean;
  const Prediction prior = Predict(Shape(), Known(), cluster_, *calibration);
  const Prediction fitted = Of(Known());
  EXPECT_GT(prior.seconds.high / prior.seconds.low, fitted.seconds.high / fitted.seconds.low);
}

TEST_F(CalibrationTest, MoreWorkTakesLonger) {
  RunSetup setup = Known();
  double last = 0;
  for (const int64_t batch : {256, 512, 1024, 2048, 4096}) {
    setup.global_batch = batch;
    const double seconds = Of(setup).seconds.value;
    EXPECT_GT(seconds, last);
    last = seconds;
  }
  // Twice the batch never takes more than twice as long: pipeline and reduction are paid once.
  RunSetup half = Known();
  half.global_batch /= 2;
  EXPECT_LT(Of(Known()).seconds.value, 2 * Of(half).seconds.value);
}

TEST_F(CalibrationTest, MoreReplicasAreFasterAndLeaner) {
  RunSetup more = Known();
  more.dp *= 2;
  more.gpus *= 2;
  EXPECT_LT(Of(more).seconds.value, Of(Known()).seconds.value);
  EXPECT_LT(Of(more).memory_gb.value, Of(Known()).memory_gb.value);
}

TEST_F(CalibrationTest, MemoryGrowsWithMicroBatchAndShrinksWithZeroAndTensorParallel) {
  const double known = Of(Known()).memory_gb.value;
  RunSetup setup = Known();
  setup.micro_batch = 8;
  EXPECT_GT(Of(setup).memory_gb.value, known);
  setup = Known();
  setup.zero = 0;
  EXPECT_GT(Of(setup).memory_gb.value, known);
  setup = Known();
  setup.tp = 4;
  setup.dp = 16;
  EXPECT_GT(Of(setup).memory_gb.value, known);
  setup = Known();
  setup.recompute = Recomputation::kNone;
  EXPECT_GT(Of(setup).memory_gb.value, known);
  EXPECT_LT(Of(setup).seconds.value, Of(Known()).seconds.value);
}

TEST_F(CalibrationTest, UnalignedShapesAreSlow) {
  ModelShape odd = Shape();
  odd.heads = 128;
  odd.hidden = 13824;
  odd.layers = 78;
  ModelShape even = odd;
  even.heads = 64;
  EXPECT_GT(Predict(odd, Known(), cluster_, calibration_).seconds.value,
            1.2 * Predict(even, Known(), cluster_, calibration_).seconds.value);
}

}  // namespace
}  // namespace cairn
