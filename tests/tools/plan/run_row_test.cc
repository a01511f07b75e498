// Tables that people keep: blanks and contradictions.
#include "tools/plan/run_row.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

constexpr char kHeader[] =
    "gpus,size_b,hidden,layers,heads,seq,vocab,dp,tp,pp,mbs,gbs,zero,mem_gb,sec_per_it,tflops,note,table\n";

Result<RunRows> Parse(const std::string& rows, bool measured = true) {
  auto table = ParseCsv(kHeader + rows, "runs.csv");
  if (!table.ok()) return table.status();
  return ParseRunRows(*table, measured, *FindCluster("a100-80"));
}

TEST(RunRowTest, LayersComeFromTheSizeWithOrWithoutTheEmbedding) {
  // 80 blocks of 14400 are 199 B, with the embedding 203 B; 78 are 194 B without, 77 are 195 B with it.
  const struct {
    const char *size, *pp;
    int64_t layers;
  } kCases[] = {{"200", "10", 80}, {"194", "6", 78}, {"191", "7", 77},
                {"195", "11", 77}, {"205", "9", 81}, {"183", "12", 72}};
  for (const auto& c : kCases) {
    const auto rows = Parse(fmt::format(",{},14400,,,2048,250000,4,8,{},1,2048,1,,,,,\n", c.size, c.pp));
    ASSERT_TRUE(rows.ok()) << rows.status().message();
    EXPECT_EQ(rows->rows[0].shape.layers, c.layers) << c.size;
  }
}

TEST(RunRowTest, BlankSecondsComeFromTflops) {
  const auto rows = Parse("80,200,14400,80,96,2048,250000,1,8,10,1,2048,1,73,,98.87,02-17,t\n");
  ASSERT_TRUE(rows.ok());
  EXPECT_NEAR(*rows->rows[0].seconds, 200e9 * 8 * 2048 * 2048 / (98.87e12 * 80), 0.1);
}

TEST(RunRowTest, RejectsSpeedAboveThePeak) {
  const auto rows = Parse("8,18,14336,6,64,2048,250000,1,8,1,2,2048,1,54,130.43,143.48,02-21,t\n");
  ASSERT_TRUE(rows.ok());
  EXPECT_NEAR(*rows->rows[0].seconds, 4 * 130.43, 1);
  ASSERT_EQ(rows->notes.size(), 1u);
  EXPECT_NE(rows->notes[0].find("above the GPU's peak"), std::string::npos);
}

TEST(RunRowTest, CorrectsGpusThatContradictTheLayout) {
  const auto rows = Parse("320,187,13824,80,64,2048,250000,8,8,10,4,2048,1,,147.04,135.92,,t\n");
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->rows[0].setup.gpus, 320);
  EXPECT_EQ(rows->rows[0].setup.dp, 4);
}

TEST(RunRowTest, PredictedRowsDoNotShowTheirMeasurements) {
  const auto rows = Parse("384,181,14336,72,64,2048,250000,8,8,6,4,2048,1,55,120.18,134.15,,t\n", false);
  ASSERT_TRUE(rows.ok());
  EXPECT_FALSE(rows->rows[0].seconds || rows->rows[0].memory_gb || rows->rows[0].tflops);
}

TEST(RunRowTest, RecognisesOutOfMemory) {
  const auto rows = Parse("384,181,14336,72,64,2048,250000,8,8,6,8,2048,1,OOM,OOM,,,t\n");
  ASSERT_TRUE(rows.ok());
  EXPECT_TRUE(rows->rows[0].out_of_memory);
}

TEST(RunRowTest, BlankHeadsComeFromRowsOfTheSameWidth) {
  const auto rows = Parse(
      "384,181,14336,72,64,2048,250000,8,8,6,4,2048,1,,,,,\n384,181,14336,72,,2048,250000,8,8,6,4,2048,1,,,,,"
      "\n");
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->rows[1].shape.heads, 64);
}

TEST(RunRowTest, PrecisionAndRecomputationHaveDefaults) {
  const std::string columns = "hidden,layers,heads,tp,pp,dp,mbs,gbs,precision,recompute\n";
  const auto parse = [&](const std::string& row) {
    return ParseRunRows(*ParseCsv(columns + row, "runs.csv"), true, *FindCluster("a100-80"));
  };
  const auto rows = parse("256,8,8,1,1,1,1,16,fp32,none\n256,8,8,1,1,1,1,16,,\n");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ(rows->rows[0].setup.precision, Precision::kFp32);
  EXPECT_EQ(rows->rows[0].setup.recompute, Recomputation::kNone);
  EXPECT_EQ(rows->rows[1].setup.precision, Precision::kBf16);
  EXPECT_EQ(rows->rows[1].setup.recompute, Recomputation::kFull);
  EXPECT_EQ(parse("256,8,8,1,1,1,1,16,int4,none\n").status().message(),
            "runs.csv:2: precision: 'int4' is not one of bf16, fp16, fp32, fp8");
}

TEST(RunRowTest, ReadsOptionsOfNewerPrograms) {
  const std::string columns =
      "gpu,gpus,hidden,layers,heads,seq,vocab,tp,pp,mbs,gbs,zero,precision,recompute,virtual_stages,"
      "sequence_parallel,flash_attention,note\n";
  const auto parse = [&](const std::string& row) {
    return ParseRunRows(*ParseCsv(columns + row, "runs.csv"), true, *FindCluster("h100"));
  };
  const auto rows = parse(
      "h100-80,768,8192,84,64,4096,131072,8,2,,384,1,fp8,selective,2,1,,70B; flash attention\n"
      "h100-80,768,8192,84,64,4096,131072,8,2,2,384,1,bf16,selective,,,0,flash attention was off\n");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const RunRow& row = rows->rows[0];
  EXPECT_EQ(row.setup.precision, Precision::kFp8);
  EXPECT_EQ(row.setup.virtual_stages, 2);
  EXPECT_TRUE(row.setup.sequence_parallel);
  EXPECT_TRUE(row.setup.flash_attention);
  EXPECT_EQ(row.micro_batches.front(), 1);
  EXPECT_GT(row.micro_batches.size(), 1u);
  EXPECT_NE(rows->notes.back().find("no micro-batch"), std::string::npos);
  EXPECT_FALSE(rows->rows[1].setup.flash_attention);
  EXPECT_TRUE(rows->rows[1].micro_batches.empty());
  EXPECT_FALSE(parse("h100-80,8,64,8,1,64,64,8,1,,8,1,bf16,full,2,,,\n").ok());  // chunks without a pipeline
  EXPECT_FALSE(parse("h100-80,8,64,8,1,64,64,8,1,,8,1,bf16,full,,2,,\n").ok());
}

TEST(RunRowTest, ReadsLayersOfTheFirstAndLastStage) {
  const auto parse = [](const std::string& ends) {
    return ParseRunRows(*ParseCsv("gpus,hidden,layers,heads,tp,pp,mbs,gbs,first_layers,last_layers\n"
                                  "64,4096,46,32,8,8,1,64," +
                                      ends + "\n",
                                  "runs.csv"),
                        true, *FindCluster("h100"));
  };
  EXPECT_EQ(parse("5,5")->rows[0].setup.first_layers, 5);
  EXPECT_EQ(parse(",4")->rows[0].setup.last_layers, 4);  // and 6 in each of the seven others
  EXPECT_NE(parse("5,6").status().message().find("runs.csv:2: first_layers"), std::string::npos);
  EXPECT_FALSE(parse("60,").ok());
}

TEST(RunRowTest, NamesBadCells) {
  const auto message = [](const std::string& row) {
    const auto rows = Parse(row);
    return rows.ok() ? std::string() : rows.status().message();
  };
  EXPECT_EQ(message("8,18,14336,6,64,2048,250000,1,eight,1,2,2048,1,,,,,\n"),
            "runs.csv:2: tp: 'eight' is not a number from 0 to 1e9");
  EXPECT_NE(message("8,,14336,,64,2048,250000,1,8,1,2,2048,1,,,,,\n").find("size_b are both blank"),
            std::string::npos);
  EXPECT_NE(message("8,18,0,6,64,2048,250000,1,8,1,2,2048,1,,,,,\n").find("hidden"), std::string::npos);
  EXPECT_NE(message(",18,14336,6,64,2048,250000,,8,1,2,2048,1,,,,,\n").find("gpus"), std::string::npos);
  EXPECT_NE(message("8,18,14336,6,64,2048,250000,1,8,1,2,nan,1,,,,,\n").find("gbs"), std::string::npos);
}

}  // namespace
}  // namespace cairn
