// The rows that were published, to the printed digit.
#include "tools/plan/formulas.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

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
  constexpr double kPaddedVocab = 250880;
  EXPECT_NEAR(MegatronTflops(72, 14336, kPaddedVocab, 2048, 2048, 120.85, 384), 133.40, 0.1);
  EXPECT_NEAR(MegatronTflops(72, 14336, kPaddedVocab, 2048, 2048, 120.18, 384), 134.15, 0.1);
}

TEST(FormulasTest, RecomputationIsOnePassOfFour) {
  EXPECT_DOUBLE_EQ(SimpleTflops(18e9, 1024, 256, 90.5, 16, false) * 4,
                   SimpleTflops(18e9, 1024, 256, 90.5, 16, true) * 3);
}

TEST(FormulasTest, SizeIsThatOfTheTables) {
  EXPECT_EQ(fmt::format("{:.0f}", Params(72, 14336, 250000, 2048) / 1e9), "181");
  EXPECT_EQ(fmt::format("{:.0f}", Params(96, 12288, 250000, 2048) / 1e9), "177");
}

TEST(FormulasTest, DaysOf362000Iterations) {
  EXPECT_EQ(fmt::format("{:.2f}", DaysToTrain(362000, 0.5)), "2.09");
}

}  // namespace
}  // namespace cairn
