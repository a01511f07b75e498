// Ranks as processes that share one machine's cores: how they slow each other down, and a sweep.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/bench/cross_validation.h"
#include "tools/plan/calibration.h"
#include "tools/plan/constants.h"

namespace cairn {
namespace {

Cluster TwoCores() {
  return {.name = "two cores",
          .gpus_per_node = 8,
          .memory_gb = 3,
          .half_tflops = 0.1,
          .single_tflops = 0.1,
          .hbm_gbps = 40,
          .link_gbps = 12,
          .nic_gbps = 12,
          .cpu = true,
          .cores = 2};
}

RunRow Row(int64_t tp, int64_t pp, int64_t dp, int64_t micro_batch) {
  RunRow row;
  row.shape = {.layers = 8, .hidden = 256, .heads = 8, .seq = 128, .vocab = 1024};
  row.setup = {.gpus = tp * pp * dp,
               .tp = tp,
               .pp = pp,
               .dp = dp,
               .micro_batch = micro_batch,
               .global_batch = 16,
               .recompute = Recomputation::kNone,
               .precision = Precision::kFp32};
  return row;
}

TimeConstants Believed() {
  TimeConstants constants{};
  for (const auto& info : TimeConstantInfos(true)) constants.*info.field = info.mean;
  return constants;
}

IterationTime TimeOn(const Cluster& cluster, const RunRow& row) {
  return TimeOf(row.shape, row.setup, cluster, Believed());
}

TEST(SharedCoresTest, RanksWithTheirOwnCoreDoNotShareTime) {
  Cluster own = TwoCores();
  own.cores = 0;
  for (const RunRow& row : {Row(1, 1, 1, 2), Row(2, 1, 1, 2), Row(1, 2, 1, 2), Row(1, 1, 2, 2)}) {
    EXPECT_EQ(TimeOn(TwoCores(), row).turns, 0);
    EXPECT_EQ(TimeOn(TwoCores(), row).Total(), TimeOn(own, row).Total());
  }
}

TEST(SharedCoresTest, MoreRanksThanCoresShareTheCores) {
  const double alone = TimeOn(TwoCores(), Row(1, 1, 1, 2)).steady;
  for (const RunRow& row : {Row(1, 1, 4, 2), Row(1, 4, 1, 2), Row(1, 2, 2, 2), Row(1, 1, 8, 2)}) {
    const IterationTime time = TimeOn(TwoCores(), row);
    EXPECT_GT(time.turns, 0);
    EXPECT_GT(time.Total(), 0.99 * alone / 2);  // two cores are at most twice as fast as one
  }
  // A core is idle while the first stage of four fills the pipeline, and while the last drains.
  EXPECT_GT(TimeOn(TwoCores(), Row(1, 4, 1, 2)).Total(), TimeOn(TwoCores(), Row(1, 1, 4, 2)).steady * 2);
}

TEST(SharedCoresTest, CoresGrowWithNodes) {
  Cluster nodes = TwoCores();
  nodes.gpus_per_node = 2;
  EXPECT_EQ(TimeOn(nodes, Row(1, 1, 4, 2)).turns, 0);
}

TEST(SharedCoresTest, ShortMessagesCostLatency) {
  // The same bytes in eight times as many messages.
  const IterationTime few = TimeOn(TwoCores(), Row(2, 1, 1, 8)), many = TimeOn(TwoCores(), Row(2, 1, 1, 1));
  EXPECT_DOUBLE_EQ(many.layer.latency, few.layer.latency);  // of one micro-batch
  EXPECT_NEAR(many.layer.tensor_parallel * 8, few.layer.tensor_parallel, 1e-12);
  EXPECT_GT(many.steady, few.steady);
}

// Measurements of a machine that differs from the prior, with a noise of 4 %.
class SweepTest : public testing::Test {
 protected:
  SweepTest() {
    truth_ = Believed();
    truth_.matmul *= 0.8;
    truth_.launch *= 2;
    truth_.link /= 5;
    truth_.latency *= 12;
    truth_.hand_over *= 15;
    for (const int64_t micro_batch : {1, 2, 4, 8})
      for (const auto& [tp, pp, dp] :
           {std::array{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {1, 2, 2}})
        if (micro_batch * dp <= 8) rows_.push_back(Row(tp, pp, dp, micro_batch));
    for (size_t i = 0; i < rows_.size(); ++i)
      rows_[i].seconds = TimeOf(rows_[i].shape, rows_[i].setup, TwoCores(), truth_).Total() *
                         std::exp(0.04 * std::sin(2.4 * static_cast<double>(i * i)));
  }

  // Calibrates on rows 0, 2, 4, ... and predicts the others.
  HeldOut Halves() {
    std::vector<RunRow> known;
    HeldOut held{"odd"};
    for (size_t i = 0; i < rows_.size(); i += 2) known.push_back(rows_[i]);
    const Calibration calibration = *Calibrate(known, TwoCores());
    for (size_t i = 1; i < rows_.size(); i += 2) {
      const Estimate seconds = Predict(rows_[i].shape, rows_[i].setup, TwoCores(), calibration).seconds;
      held.time.Add(seconds.value, *rows_[i].seconds);
      held.within_time += *rows_[i].seconds >= seconds.low && *rows_[i].seconds <= seconds.high;
    }
    return held;
  }

  TimeConstants truth_;
  std::vector<RunRow> rows_;
};

TEST_F(SweepTest, HalfOfTheRowsPredictTheOtherHalf) {
  const HeldOut held = Halves();
  EXPECT_LT(held.time.Median(), 0.06);
  EXPECT_LT(held.time.Worst(), 0.4);
  EXPECT_GE(held.within_time * 10, static_cast<int>(held.time.all.size()) * 8);
}

TEST_F(SweepTest, OneDisturbedRunDoesNotSpoilTheFit) {
  *rows_[4].seconds *= 2.5;
  EXPECT_LT(Halves().time.Median(), 0.1);
}

TEST_F(SweepTest, UnconstrainedConstantsStayUnchanged) {
  std::vector<RunRow> single;
  for (const RunRow& row : rows_)
    if (row.setup.gpus == 1) single.push_back(row);
  const Calibration calibration = *Calibrate(single, TwoCores());
  EXPECT_NEAR(calibration.time.constants.latency / Believed().latency, 1, 1e-6);
  EXPECT_NEAR(calibration.time.constants.hand_over / Believed().hand_over, 1, 1e-6);
  const auto width = [&](const RunRow& row) {
    const Estimate seconds = Predict(row.shape, row.setup, TwoCores(), calibration).seconds;
    return seconds.high / seconds.low;
  };
  EXPECT_GT(width(Row(2, 1, 1, 1)), 1.5 * width(Row(1, 1, 1, 1)));  // and a note reports it
}

}  // namespace
}  // namespace cairn
