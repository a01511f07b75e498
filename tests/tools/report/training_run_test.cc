#include "tools/report/training_run.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/report/sample_logs.h"
#include "tools/report/report_columns.h"
#include "tools/report/run_summary.h"
#include "tools/report/sample_series.h"

namespace cairn {
namespace {

constexpr const char* kOutOfMemory = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n";

std::string Lines(int first, int last, int total, double seconds = 2) {
  std::string text;
  for (int i = first; i <= last; ++i) text += NewLine(i, total, seconds);
  return text;
}

TrainingLog Log(const std::string& text, const std::string& name = "a.out") {
  return ReadTrainingText(text, name);
}

std::vector<RunSummary> Summaries(std::vector<TrainingLog> logs, const SummaryOptions& options = {}) {
  std::vector<RunSummary> summaries;
  for (const TrainingRun& run : JoinRuns(std::move(logs))) summaries.push_back(Summarize(run, options));
  return summaries;
}

std::vector<RunSummary> OfText(const std::string& text) { return Summaries({Log(text)}); }

TEST(TrainingRunTest, AveragesExcludeTheFirstIterations) {
  const auto runs = OfText(NewLine(1, 3, 10) + NewLine(2, 3, 4) + NewLine(3, 3, 1));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_DOUBLE_EQ(*runs[0].sec_per_it, 5);
  EXPECT_DOUBLE_EQ(*runs[0].sec_per_it_skip1, 2.5);
  EXPECT_DOUBLE_EQ(*runs[0].sec_per_it_skip2, 1);
  EXPECT_DOUBLE_EQ(*runs[0].median, 4);
  EXPECT_EQ(runs[0].iterations, 3);
  EXPECT_TRUE(runs[0].ok());
  EXPECT_TRUE(runs[0].complete);
  EXPECT_FALSE(OfText(NewLine(1, 3, 10))[0].sec_per_it_skip1.has_value());
}

TEST(TrainingRunTest, ARestartContinuesAndRepeatedIterationsCountOnce) {
  const auto runs = OfText(Dump(8, 12, 384, 2, 2048) + Lines(1, 10, 20) + kOutOfMemory +
                           Dump(8, 12, 384, 2, 2048) + " loading checkpoint\n" + Lines(7, 20, 20, 4));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_TRUE(runs[0].ok());
  EXPECT_EQ(runs[0].starts, 2);
  EXPECT_EQ(runs[0].iterations, 20);
  EXPECT_EQ(runs[0].redone_iterations, 4);
  EXPECT_DOUBLE_EQ(runs[0].redone_seconds, 8);
  EXPECT_DOUBLE_EQ(*runs[0].sec_per_it, (6 * 2 + 14 * 4) / 20.0);
  ASSERT_EQ(runs[0].failures.size(), 1u);
  EXPECT_EQ(runs[0].failures[0].cause, "out of memory");
}

TEST(TrainingRunTest, ANaNLossIsShown) {
  const auto loss = FindColumns({"loss"});
  ASSERT_TRUE(loss.ok());
  const auto shown = [&](const std::string& text) { return Cell(*(*loss)[0], OfText(text)[0]); };
  EXPECT_EQ(shown(NewLine(1, 3, 2) + NewLine(2, 3, 2, NAN)), "nan");
  EXPECT_EQ(shown(NewLine(1, 3, 2, NAN) + NewLine(2, 3, 2)), "3.5");
  EXPECT_EQ(shown(" iteration 1/3 | elapsed time per iteration (ms): 10.0 |\n"), "-");
}

TEST(TrainingRunTest, WithoutABannerAStepBackIsARestart) {
  const auto runs = OfText(Lines(1, 10, 20) + Lines(6, 20, 20));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].iterations, 20);
  EXPECT_EQ(runs[0].redone_iterations, 5);
}

TEST(TrainingRunTest, OtherConfigurationsAndRestartsFrom1AreSeparateRuns) {
  const auto runs = OfText(Dump(8, 12, 384, 2, 2048) + Lines(1, 5, 5) + Dump(8, 12, 384, 4, 2048) +
                           Lines(1, 5, 5) + Lines(1, 5, 5));
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].config.mbs, 2);
  EXPECT_EQ(runs[1].config.mbs, 4);
  for (const RunSummary& run : runs) EXPECT_EQ(run.iterations, 5);
}

TEST(TrainingRunTest, AJobQueuedAgainBeforeItsFirstCheckpointIsOneRun) {
  const auto runs =
      OfText(Dump(8, 12, 384, 2, 2048) + Lines(1, 3, 10) +
             "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2021-01-01T00:00:00 DUE TO PREEMPTION ***\n" +
             Dump(8, 12, 384, 2, 2048) + Lines(1, 10, 10));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].iterations, 10);
  EXPECT_EQ(runs[0].redone_iterations, 3);
  EXPECT_TRUE(runs[0].ok());
}

TEST(TrainingRunTest, RestartsInOtherFilesAreJoinedInAnyOrder) {
  const std::string first = Dump(8, 12, 384, 2, 2048) + Lines(1, 10, 30),
                    second = Dump(8, 12, 384, 2, 2048) + Lines(9, 20, 30),
                    third = Dump(8, 12, 384, 2, 2048) + Lines(21, 30, 30);
  for (const auto& order : {std::array{0, 1, 2}, std::array{2, 0, 1}, std::array{1, 2, 0}}) {
    std::vector<TrainingLog> logs;
    for (const int i : order)
      logs.push_back(Log(std::array{first, second, third}[static_cast<size_t>(i)], fmt::format("{}.out", i)));
    const auto runs = Summaries(std::move(logs));
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].files, (std::vector<std::string>{"0.out", "1.out", "2.out"}));
    EXPECT_EQ(runs[0].iterations, 30);
    EXPECT_EQ(runs[0].redone_iterations, 2);
  }
}

TEST(TrainingRunTest, FilesWithOtherConfigurationsStayApart) {
  EXPECT_EQ(Summaries({Log(Dump(8, 12, 384, 2, 2048) + Lines(1, 10, 30), "a"),
                       Log(Dump(8, 6, 384, 2, 2048) + Lines(9, 20, 30), "b")})
                .size(),
            2u);
  std::string wide;
  for (int i = 9; i <= 20; ++i) wide += NewLine(i, 30, 2, 3.5, 1024);
  EXPECT_EQ(Summaries({Log(Lines(1, 10, 30), "a"), Log(wide, "b")}).size(), 2u);
  EXPECT_EQ(Summaries({Log(Lines(1, 10, 30), "pp4.out"), Log(Lines(9, 20, 30), "pp8.out")}).size(), 2u);
  EXPECT_EQ(Summaries({Log(Lines(1, 10, 30), "a"), Log(Lines(1, 20, 30), "b")}).size(), 2u);
}

TEST(TrainingRunTest, AFailedRunIsReported) {
  const auto runs =
      OfText(Lines(1, 5, 10) + "Traceback (most recent call last):\n  File \"x\"\n" + kOutOfMemory);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_FALSE(runs[0].ok());
  EXPECT_EQ(runs[0].cause, "out of memory");
  EXPECT_EQ(runs[0].failure->line, 8u);
  EXPECT_EQ(runs[0].iterations, 5);
  const auto none = OfText("hello\n" + std::string(kOutOfMemory));
  EXPECT_FALSE(none[0].ok());
  EXPECT_EQ(none[0].cause, "out of memory");
}

TEST(TrainingRunTest, ALogThatEndsBeforeItsLastIterationIsIncomplete) {
  const auto runs = OfText(Lines(1, 9, 200));
  EXPECT_EQ(runs[0].end, RunEnd::kIncomplete);
  EXPECT_EQ(runs[0].cause, "ends at 9 of 200");
  EXPECT_EQ(OfText(Lines(1, 9, 9))[0].end, RunEnd::kOk);
  EXPECT_EQ(OfText(Lines(1, 9, 200) + "[exiting program at iteration 9] datetime: x\n")[0].end, RunEnd::kOk);
  EXPECT_EQ(OfText(OldLine(100, 205, 1) + OldLine(200, 205, 1))[0].end, RunEnd::kOk) << "a line every 100";
  EXPECT_EQ(OfText(OldLine(100, 300, 1) + OldLine(200, 300, 1))[0].end, RunEnd::kIncomplete);
  EXPECT_EQ(OfText(Dump(8, 12, 384, 2, 2048))[0].end, RunEnd::kIncomplete);
  EXPECT_EQ(OfText(Dump(8, 12, 384, 2, 2048))[0].cause, "no iteration");
}

TEST(TrainingRunTest, AnExceptionWithoutAKindIsAFailure) {
  const auto runs = OfText(Lines(1, 9, 200) +
                           "Traceback (most recent call last):\n  File \"x\"\nException: Current loss scale "
                           "already at minimum - cannot decrease scale anymore. Exiting run.\n");
  EXPECT_EQ(runs[0].end, RunEnd::kFailed);
  EXPECT_EQ(runs[0].failure->line, 12u);
  EXPECT_EQ(
      OfText(Lines(1, 9, 200) + "Traceback (most recent call last):\n  File \"x\"\nMyOwn: x\n")[0].cause,
      "python traceback");
}

TEST(TrainingRunTest, OtherFilesAreUnknown) {
  const auto runs = OfText("hello\n");
  EXPECT_EQ(runs[0].end, RunEnd::kUnknown);
  EXPECT_EQ(runs[0].cause, "unknown format");
}

TEST(TrainingRunTest, SurvivedErrorsAndLeavingRanksAreNotFailures) {
  EXPECT_TRUE(OfText(Lines(1, 2, 9) + "ValueError: a worker's\n" + Lines(3, 9, 9))[0].ok());
  EXPECT_TRUE(OfText(Lines(1, 9, 9) + "RuntimeError: NCCL communicator was aborted on rank 1.\n")[0].ok());
  EXPECT_FALSE(OfText(Lines(1, 9, 9) + "OSError: [Errno 28] No space left on device\n")[0].ok())
      << "the last checkpoint";
}

TEST(TrainingRunTest, TimeBetweenStartsIsLost) {
  const auto runs =
      OfText(CoreLine(1, 4, 10, "2024-01-01 00:00:10") + CoreLine(2, 4, 10, "2024-01-01 00:00:20") +
             Dump(8, 12, 384, 2, 1024) + CoreLine(2, 4, 10, "2024-01-01 01:00:20") +
             CoreLine(3, 4, 10, "2024-01-01 01:00:30") + CoreLine(4, 4, 10, "2024-01-01 01:00:40"));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_DOUBLE_EQ(runs[0].gap_seconds, 3600);
  EXPECT_DOUBLE_EQ(runs[0].redone_seconds, 10);
}

TEST(TrainingRunTest, ReadsLinesOfSeveralIterations) {
  const auto runs = OfText(OldLine(100, 1000, 10) + OldLine(200, 1000, 4) + OldLine(300, 1000, 4));
  EXPECT_EQ(runs[0].iterations, 300);
  EXPECT_DOUBLE_EQ(*runs[0].sec_per_it, 6);
  EXPECT_DOUBLE_EQ(*runs[0].sec_per_it_skip1, 4) << "the line that holds the first iteration is left out";
}

TEST(TrainingRunTest, AcceptsIterationsCountedFrom0) {
  const auto line = [](int i) {
    return fmt::format(
        "Training epoch 0, iteration {}/2 | lr: 1.499e-07 | global_batch_size: 512 | global_step: {} | "
        "reduced_train_loss: 11.03 | train_step_timing in s: 5.8 | consumed_samples: {}\n",
        i, i, (i + 1) * 512);
  };
  EXPECT_EQ(OfText(line(0) + line(1) + line(2))[0].iterations, 3);
  EXPECT_EQ(OfText(line(0))[0].iterations, 1);
}

TEST(TrainingRunTest, ReadsMegatronOf2019WithoutColons) {
  const auto line = [](int i, double loss) {
    return fmt::format(
        " iteration {:8d}/  320000 | elapsed time per iteration (ms): 480.0 | learning rate "
        "1.500E-04 | lm loss {:.6E} | loss scale 65536.0 |\n",
        i, loss);
  };
  const RunSummary run = OfText(line(100, 9.5) + line(200, 8.5))[0];
  EXPECT_EQ(run.loss, 8.5);
  EXPECT_DOUBLE_EQ(*run.sec_per_it, 0.48);
}

TEST(TrainingRunTest, PublishedTflopsOf181B) {
  std::string text = Dump(8, 12, 384, 2, 2048);
  for (int i = 1; i <= 5; ++i) text += NewLine(i, 10, 120.85, 3.5, 2048);
  const auto runs = OfText(text);
  EXPECT_NEAR(*runs[0].tflops, 133.40, 0.1);
  EXPECT_LT(*runs[0].formulas.simple, *runs[0].formulas.megatron);
  EXPECT_NEAR(*runs[0].parameters / 1e9, 181.2, 0.3);
  EXPECT_NEAR(*runs[0].tokens_per_s, 2048 * 2048 / 120.85, 1e-6);
}

// Llama 3 8B as Megatron-LM dumps it. 989 TFLOPs of the model per second and GPU are what Megatron-LM's own
// log would report.
TEST(TrainingRunTest, TheWidthOfTheMlpGatesAndGroupsCount) {
  const std::string dump =
      "  ffn_hidden_size ................................. 14336\n"
      "  global_batch_size ............................... 128\n"
      "  group_query_attention ........................... True\n"
      "  hidden_size ..................................... 4096\n"
      "  kv_channels ..................................... 128\n"
      "  num_attention_heads ............................. 32\n"
      "  num_layers ...................................... 32\n"
      "  num_query_groups ................................ 8\n"
      "  padded_vocab_size ............................... 128256\n"
      "  recompute_granularity ........................... None\n"
      "  seq_length ...................................... 8192\n"
      "  swiglu .......................................... True\n"
      "  untie_embeddings_and_output_weights ............. True\n"
      "  world_size ...................................... 8\n";
  std::string lines;
  for (int i = 1; i <= 5; ++i) lines += NewLine(i, 10, 16, 3.5, 128);
  const RunSummary run = OfText(dump + lines)[0];
  const double products = 32 * (2 * 4096.0 * (4096 + 1024) + 3 * 4096.0 * 14336) + 4096.0 * 128256;
  const double attention = 32 * 2 * 8192.0 * 4096;  // all pairs: two products
  const double tokens = 128 * 8192.0 / (16 * 8 * 1e12);
  EXPECT_NEAR(*run.formulas.megatron / (6 * tokens * (products + attention)), 1, 1e-9);
  EXPECT_NEAR(*run.formulas.model / (6 * tokens * (products + attention / 2)), 1, 1e-9);
  EXPECT_NEAR(*run.parameters / 8.03e9, 1, 0.006);  // learned positions are counted
  // Megatron-LM prints one group if it has none.
  const std::string plain = std::string(dump).replace(dump.find("attention ........................... True"),
                                                      42, "attention ........................... False");
  EXPECT_GT(*OfText(plain + lines)[0].parameters, *run.parameters + 32 * 2 * 4096.0 * 3000);
}

TEST(TrainingRunTest, TakesConfigurationFromFileNameAndOptions) {
  SummaryOptions options;
  options.defaults.gpus = 64;
  options.defaults.seq = 1024;
  std::string text;
  for (int i = 1; i <= 3; ++i) text += OldLine(i, 10, 129);
  const auto runs = Summaries({Log(text, "logs/52B-ds-zero1-mbs-4-pp16-dp-1-gas-256.out")}, options);
  ASSERT_EQ(runs.size(), 1u);
  const RunConfig& config = runs[0].config;
  EXPECT_EQ(config.tp, 4);
  EXPECT_EQ(config.gbs, 1024);
  EXPECT_EQ(config.zero, 1);
  EXPECT_EQ(fmt::format("{:.1f}", *runs[0].tflops), "52.8");
}

TEST(TrainingRunTest, DaysOfATraining) {
  SummaryOptions options;
  options.iterations = 362000;
  options.defaults.gpus = 16;
  const auto runs = Summaries({Log(Lines(1, 3, 10, 0.5))}, options);
  EXPECT_EQ(fmt::format("{:.2f}", *runs[0].days), "2.09");
  EXPECT_NEAR(*runs[0].gpu_hours, 2.0949 * 24 * 16, 0.1);
  SummaryOptions by_tokens;
  by_tokens.tokens = 512.0 * 2048 * 1000;
  EXPECT_NEAR(*Summaries({Log(Lines(1, 3, 10, 0.5))}, by_tokens)[0].days, 1000 * 0.5 / 86400, 1e-9);
}

TEST(TrainingRunTest, MergesSamplesToLimitMemoryAndKeepsMeans) {
  SampleSeries series;
  const int count = static_cast<int>(SampleSeries::kMaxSamples) + 1001;
  double sum = 0;
  for (int i = 1; i <= count; ++i) {
    series.Add({.seconds = i % 7 + 1.0, .iteration = i});
    sum += i % 7 + 1.0;
  }
  EXPECT_LE(series.samples().size(), SampleSeries::kMaxSamples);
  double kept = 0, lines = 0;
  for (const Sample& sample : series.samples()) {
    kept += sample.seconds * sample.lines;
    lines += sample.lines;
  }
  EXPECT_EQ(lines, count);
  EXPECT_NEAR(kept / lines, sum / count, 1e-9);
  EXPECT_EQ(series.back().iteration, count);
}

}  // namespace
}  // namespace cairn
