// The rows that were published, to the printed digit.
#include "tools/plan/formulas.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ckpt/model/training_flops.h"
#include "tools/plan/calibration.h"

namespace cairn {
namespace {

struct V100Row {
  double gpus, size_b, global_batch, sec_per_it;
  const char* tflops;
};

TEST(FormulasTest, V100RowsToThePrintedDigit) {
  constexpr V100Row kRows[] = {{16, 18, 256, 90.5, "26.1"}, {16, 18, 768, 262, "27.0"},
                               {32, 39, 512, 82, "62.3"},   {64, 52, 1024, 129, "52.8"},
                               {64, 52, 1536, 328, "31.2"}, {64, 52, 1024, 150, "45.4"}};
  for (const V100Row& row : kRows) {
    const double tflops = SimpleTflops(row.size_b * 1e9, 1024, row.global_batch, row.sec_per_it, row.gpus);
    EXPECT_EQ(fmt::format("{:.1f}", tflops), row.tflops) << row.size_b << " B on " << row.gpus;
  }
}

TEST(FormulasTest, PublishedTflopsOf181B) {
  const ModelShape shape{.layers = 72, .hidden = 14336, .heads = 64, .vocab = 250000};
  EXPECT_NEAR(MegatronTflops(shape, 8, 2048, 120.85, 384), 133.40, 0.1);
  EXPECT_NEAR(MegatronTflops(shape, 8, 2048, 120.18, 384), 134.15, 0.1);
}

// TFLOPs in Jean Zay's tables since 02-21 are from this formula (earlier ones from a rougher one), except
// one row whose columns may be swapped; those of arXiv 2104.04473 are rounded to whole numbers.
TEST(FormulasTest, PublishedTables) {
  const auto off = [](const char* place, double tolerance, const std::set<std::string>& tables) {
    const std::vector<RunRow> rows = *BuiltInRuns(place);
    int judged = 0, wrong = 0;
    for (const RunRow& row : rows) {
      if (!row.seconds || !row.tflops || (!tables.empty() && !tables.contains(row.group))) continue;
      const double tflops = MegatronTflops(row.shape, row.setup.tp, row.setup.global_batch, *row.seconds,
                                           row.setup.gpus, row.setup.recompute);
      ++judged;
      wrong += std::abs(tflops / *row.tflops - 1) > tolerance;
    }
    return std::pair(judged, wrong);
  };
  EXPECT_EQ(off("jean-zay", 2e-4,
                {"48 node contenders", "Final round comparison", "NHEADs comparison", "GBS Variations"}),
            std::pair(43, 1));
  EXPECT_EQ(off("selene", 0.004, {}), std::pair(5, 0));
}

// The paper's 96·B·s·l·h²·(1 + s/6h + v/16lh), and Megatron-LM's 72·B·s·l·h²·(1 + s/12h + v/12lh).
TEST(FormulasTest, MatchThePublishedFormulasForAPlainGpt) {
  const double l = 24, h = 1024, s = 2048, v = 50304, batch = 8;
  const ModelShape shape{.layers = 24, .hidden = 1024, .heads = 16, .seq = 2048, .vocab = 50304};
  const double block = batch * s * l * h * h;
  const Flops paper = StepFlops(shape, 1, batch, Recomputation::kFull, kAllPairs);
  EXPECT_NEAR(paper.hardware / (96 * block * (1 + s / (6 * h) + v / (16 * l * h))), 1, 1e-12);
  EXPECT_EQ(paper.model, StepFlops(shape, 1, batch, Recomputation::kNone, kAllPairs).hardware);
  const Flops megatron = StepFlops(shape, 1, batch, Recomputation::kNone, kCausalPairs);
  EXPECT_NEAR(megatron.model / (72 * block * (1 + s / (12 * h) + v / (12 * l * h))), 1, 1e-12);
}

// Llama 3 8B: 6 operations per matrix parameter and token; the embedding's table is not a matrix.
TEST(FormulasTest, WidthOfTheMlpGatesAndGroupsCount) {
  ModelShape llama{.layers = 32,
                   .hidden = 4096,
                   .heads = 32,
                   .kv_heads = 8,
                   .ffn = 14336,
                   .seq = 8192,
                   .vocab = 128256,
                   .tied = false,
                   .modules = kLlamaModules};
  const double norms = 32 * 2 * 4096 + 4096, table = 128256.0 * 4096;
  const double products = 6 * (llama.TotalParams() - norms - table) * 8192;
  const double attention = 3 * 32 * 2.0 * 8192 * 8192 * 4096;  // scores and values of half the pairs
  EXPECT_NEAR(ModelTflops(llama, 1, 1, 1e-12, 1) / (products + attention), 1, 1e-12);
  const double whole = ModelTflops(llama, 1, 1, 1, 1);
  llama.kv_heads = 32;  // three times as many key and value weights more
  EXPECT_NEAR((ModelTflops(llama, 1, 1, 1, 1) - whole) * 1e12, 6.0 * 8192 * 32 * 2 * 4096 * 3 * 1024, 1e3);
}

TEST(FormulasTest, RecomputationIsOnePassOfFour) {
  EXPECT_DOUBLE_EQ(SimpleTflops(18e9, 1024, 256, 90.5, 16, false) * 4,
                   SimpleTflops(18e9, 1024, 256, 90.5, 16, true) * 3);
}

TEST(FormulasTest, SizeMatchesTheTables) {
  const auto size = [](int64_t layers, int64_t hidden) {
    const ModelShape shape{.layers = layers, .hidden = hidden, .heads = 64, .vocab = 250000};
    return fmt::format("{:.0f}", shape.TotalParams() / 1e9);
  };
  EXPECT_EQ(size(72, 14336), "181");
  EXPECT_EQ(size(96, 12288), "177");
}

TEST(FormulasTest, DaysOf362000Iterations) {
  EXPECT_EQ(fmt::format("{:.2f}", DaysToTrain(362000, 0.5)), "2.09");
}

}  // namespace
}  // namespace cairn
