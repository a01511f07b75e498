#include "tools/report/log_reader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/report/sample_logs.h"
#include "tools/report/training_start.h"

namespace cairn {
namespace {

std::vector<TrainingStart> Starts(const std::string& text) { return ReadTrainingText(text, "x.out").starts; }

TrainingStart OneStart(const std::string& text) {
  std::vector<TrainingStart> starts = Starts(text);
  EXPECT_EQ(starts.size(), 1u);
  return starts.at(0);
}

std::vector<double> SecondsOf(const TrainingStart& start) {
  std::vector<double> seconds;
  for (const Sample& sample : start.series.samples()) seconds.push_back(sample.seconds);
  return seconds;
}

TEST(LogReaderTest, ReadsLinesOfAllVersions) {
  EXPECT_EQ(SecondsOf(OneStart(NewLine(1, 10, 3) + NewLine(2, 10, 1.25))), (std::vector<double>{3, 1.25}));
  EXPECT_EQ(SecondsOf(OneStart(OldLine(100, 1000, 3) + OldLine(200, 1000, 1.25))),
            (std::vector<double>{3, 1.25}));
  const TrainingStart core = OneStart(CoreLine(1, 10, 3) + CoreLine(2, 10, 1.25));
  EXPECT_EQ(SecondsOf(core), (std::vector<double>{3, 1.25}));
  EXPECT_EQ(core.series.back().global_batch, 1024);
  EXPECT_FLOAT_EQ(core.series.back().grad_norm, 47.021f);
  EXPECT_EQ(core.series.back().skipped, 1);
  EXPECT_DOUBLE_EQ(core.logged_tflops_sum, 2 * 812.5);
  EXPECT_DOUBLE_EQ(core.last_loss, 10.64275);
}

TEST(LogReaderTest, IgnoresExtraBlanks) {
  for (const std::string& line : {NewLine(7, 10, 2.5, 1.5), OldLine(7, 10, 2.5), CoreLine(7, 10, 2.5)}) {
    std::string odd = line;
    odd.insert(odd.find("loss scale"), "  ");
    const TrainingStart plain = OneStart(line), blank = OneStart(odd);
    const Sample &a = plain.series.back(), &b = blank.series.back();
    EXPECT_EQ(a.iteration, 7);
    EXPECT_EQ(std::tie(a.seconds, a.iteration, a.global_batch, a.loss, a.skipped, a.nans),
              std::tie(b.seconds, b.iteration, b.global_batch, b.loss, b.skipped, b.nans));
    EXPECT_EQ(std::isnan(a.grad_norm), std::isnan(b.grad_norm));
  }
}

TEST(LogReaderTest, ReadsFieldsInAnyOrderUnitsAndSpacing) {
  const TrainingStart start = OneStart(
      "iteration 3/9|lm loss:2.5|grad norm :  nan |elapsed time per iteration (s):1.5e0|gloabl batch size:  "
      "8\n"
      "  ITERATION:  4 / 9 | loss: 2.25 | Elapsed Time Per Iteration: 1250 ms |\n"
      "iteration 5/ 9 | elapsed time per iteration (ms): 1000.0/1100.2 | lm loss: 2.0 |\n"
      "Training epoch 0, iteration 6/9 | lr: 1e-5 | global_batch_size: 8 | reduced_train_loss: 1.75 | "
      "train_step_timing in s: 0.75\n");
  EXPECT_EQ(SecondsOf(start), (std::vector<double>{1.5, 1.25, 1, 0.75}));
  EXPECT_DOUBLE_EQ(start.last_loss, 1.75);
  EXPECT_EQ(start.series.front().global_batch, 8);
  EXPECT_EQ(start.total, 9);
}

TEST(LogReaderTest, CommasMaySeparateThousands) {
  const TrainingStart start = OneStart(
      "iteration 1/ 9 | consumed samples: 1,024 | elapsed time per iteration (ms): 9,000.5 | global batch "
      "size: 1,024 |\n"
      "iteration 2/ 9 | elapsed time per iteration (ms): 1,234,000 | global batch size: 10,24 |\n");
  EXPECT_EQ(SecondsOf(start), (std::vector<double>{9.0005, 1234}));
  EXPECT_EQ(start.series.front().global_batch, 1024);
  EXPECT_EQ(start.series.back().global_batch, 10) << "10,24 is not a thousand";
}

TEST(LogReaderTest, IgnoresLinesThatOnlyMentionAnIteration) {
  const TrainingStart start = OneStart(
      " successfully saved checkpoint at iteration     500 to /x\n"
      " validation loss at iteration 500 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n"
      " > elapsed time for building blendable dataset indices: 0.00 (sec)\n"
      "loading checkpoint from /x at iteration 500\n");
  EXPECT_TRUE(start.series.empty());
  EXPECT_EQ(start.checkpoints, 1);
  EXPECT_DOUBLE_EQ(start.validation_loss, 2.5);
}

TEST(LogReaderTest, IgnoresTerminalCodesAndLauncherPrefixes) {
  std::string line = NewLine(2, 10, 1.5);
  line.pop_back();
  const TrainingStart start =
      OneStart("3: " + NewLine(1, 10, 2.5) + "3: \x1b[32m" + line + "\x1b[0m\r\n" +
               "Loading: 10%\rLoading: 50%\r3: " + NewLine(3, 10, 3.5) + "Epoch\r\r\n");
  EXPECT_EQ(SecondsOf(start), (std::vector<double>{2.5, 1.5, 3.5}));
}

TEST(LogReaderTest, ReadsLinesWithMissingLineEnds) {
  std::string first = NewLine(1, 10, 2.5);
  first.pop_back();
  EXPECT_EQ(SecondsOf(OneStart(first + NewLine(2, 10, 1.5))), (std::vector<double>{2.5, 1.5}));
  EXPECT_EQ(SecondsOf(OneStart(first)), (std::vector<double>{2.5})) << "the last line may have no end";
}

TEST(LogReaderTest, CountsLinesOfSeveralRanksOnce) {
  const TrainingStart start =
      OneStart("0: " + NewLine(1, 10, 1) + "1: " + NewLine(1, 10, 1.1) + "0: " + NewLine(2, 10, 2) +
               "0: " + NewLine(3, 10, 3) + "1: " + NewLine(2, 10, 2.1) + "1: " + NewLine(3, 10, 3.1));
  EXPECT_EQ(SecondsOf(start), (std::vector<double>{1, 2, 3}));
}

TEST(LogReaderTest, ReadsTheConfigurationFromTheArguments) {
  EXPECT_EQ(OneStart(Dump(8, 12, 384, 2, 2048) + NewLine(1, 10, 1)).config, (RunConfig{.gpus = 384,
                                                                                       .tp = 8,
                                                                                       .pp = 12,
                                                                                       .dp = 4,
                                                                                       .mbs = 2,
                                                                                       .gbs = 2048,
                                                                                       .zero = 1,
                                                                                       .layers = 72,
                                                                                       .hidden = 14336,
                                                                                       .heads = 112,
                                                                                       .seq = 2048,
                                                                                       .padded_vocab = 250880,
                                                                                       .recompute = true,
                                                                                       .precision = "bf16"}));
}

TEST(LogReaderTest, ReadsTheWorldSizeOfEachMegatronVersion) {
  EXPECT_EQ(OneStart("using world size: 16 and model-parallel size: 2 \n").config,
            (RunConfig{.gpus = 16, .tp = 2}));
  EXPECT_EQ(OneStart("using world size: 64, data-parallel size: 2, context-parallel size: 4, hierarchical "
                     "context-parallel sizes: None, encoder-tensor-model-parallel size: 3, "
                     "tensor-model-parallel size: 8, pipeline-model-parallel size: 1\n")
                .config,
            (RunConfig{.gpus = 64, .tp = 8, .pp = 1, .dp = 2, .cp = 4}));
}

TEST(LogReaderTest, ReadsTheConfigurationFromCommandLinesAndJson) {
  EXPECT_EQ(OneStart("+ srun python -u pretrain_gpt.py --tensor-model-parallel-size 4 "
                     "--pipeline-model-parallel-size=2 --hidden-size 1024 "
                     "--seq-length 512 --fp16 --recompute-granularity full\n"
                     "    \"train_micro_batch_size_per_gpu\": 3, \"train_batch_size\": 24,\n"
                     "  \"zero_optimization\": {\"stage\": 2},\n")
                .config,
            (RunConfig{.tp = 4,
                       .pp = 2,
                       .mbs = 3,
                       .gbs = 24,
                       .zero = 2,
                       .hidden = 1024,
                       .seq = 512,
                       .recompute = true,
                       .precision = "fp16"}));
}

TEST(LogReaderTest, ReadsDeepSpeedsLines) {
  const TrainingStart pipeline = OneStart(
      "steps: 10 loss: 8.9013 iter time (s): 1.250 samples/sec: 25.600\n"
      "[2021-05-01 12:00:00,123] [INFO] [logging.py:68:log_dist] [Rank 0] step=10, skipped=2, lr=[1e-05], "
      "mom=[(0.9, 0.999)]\n"
      "steps: 20 loss: 8.5 iter time (s): 1.000 samples/sec: 32.000\n");
  EXPECT_EQ(SecondsOf(pipeline), (std::vector<double>{1.25, 1}));
  EXPECT_EQ(pipeline.series.back().global_batch, 32);
  EXPECT_EQ(pipeline.skipped_so_far, 2);
  EXPECT_DOUBLE_EQ(pipeline.last_loss, 8.5);
  const TrainingStart rate = OneStart(
      "[INFO] [timer.py:215:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=220.6, "
      "CurrSamplesPerSec=200, MemAllocated=0.07GB, MaxMemAllocated=1.36GB\n"
      "[INFO] [timer.py:157:stop] 0/20, SamplesPerSec=100\n");
  EXPECT_EQ(SecondsOf(rate), (std::vector<double>{1 / 200., 1 / 100.}));
  EXPECT_EQ(rate.series.back().iteration, 20);
  EXPECT_DOUBLE_EQ(rate.allocated_gib, 1.36);
}

TEST(LogReaderTest, PrefersMegatronsLinesToDeepSpeeds) {
  const TrainingStart start =
      OneStart("steps: 1 loss: 8.9 iter time (s): 9.250 samples/sec: 25.600\n" + NewLine(1, 10, 2) +
               "steps: 2 loss: 8.9 iter time (s): 9.250 samples/sec: 25.600\n" + NewLine(2, 10, 3));
  EXPECT_EQ(SecondsOf(start), (std::vector<double>{2, 3}));
}

TEST(LogReaderTest, MemoryIsTheLargestOfAllRanks) {
  const TrainingStart start = OneStart(
      "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 1024.0 | reserved: 9999.0 "
      "| max reserved: 3072.0\n"
      "[Rank 8] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2048.0 | reserved: 9999.0 "
      "| max reserved: 2048.0\n"
      "MA 0.38 GB         Max_MA 0.5 GB         CA 0.39 GB         Max_CA 4 GB \n");
  EXPECT_DOUBLE_EQ(start.allocated_gib, 2);
  EXPECT_DOUBLE_EQ(start.reserved_gib, 4);
}

TEST(LogReaderTest, ReadsCheckpointStalls) {
  const TrainingStart start = OneStart(
      " successfully saved checkpoint from iteration       5 to run/a (stall 0.250 s, durable after 0.020 "
      "s)\n"
      "  successfully saved checkpoint at iteration      10 to /x\n"
      "  successfully saved checkpoint at iteration      10 to /x\n"
      "time (ms) | save-checkpoint: 17960.68\n"
      "    save-checkpoint ................................: (25976.43, 26000.00)\n");
  EXPECT_EQ(start.checkpoints, 2);
  EXPECT_NEAR(start.checkpoint_seconds, 0.25 + 17.96068 + 26, 1e-9);
  EXPECT_DOUBLE_EQ(start.longest_checkpoint_seconds, 26);
}

TEST(LogReaderTest, SeparatesSavesToTheNodesFromSavesToTheRun) {
  const TrainingStart start = OneStart(
      " successfully saved checkpoint from iteration       5 to /dev/shm/a (stall 0.25 s, safe after 0.5 s)\n"
      " successfully saved checkpoint from iteration      10 to /dev/shm/a (stall 0.5 s, safe after 1 s)\n"
      " successfully saved checkpoint from iteration       5 to run/a (stall 0.25 s, durable after 8 s)\n"
      " successfully saved checkpoint from iteration      15 to /nvme/a (stall 2 s, safe after 3 s)\n");
  const auto expect = [](const SaveTimes& times, int64_t saves, double stall, double whole) {
    EXPECT_EQ(times.saves, saves);
    EXPECT_DOUBLE_EQ(times.stall_seconds, stall);
    EXPECT_DOUBLE_EQ(times.whole_seconds, whole);
  };
  expect(start.memory_saves, 2, 0.75, 1.5);
  expect(start.run_saves, 1, 0.25, 8);
  expect(start.disk_saves, 1, 2, 3);
}

TEST(LogReaderTest, ReadsLongLinesAndIgnoresBinaryData) {
  const std::string zeros(3 << 20, '\0'), letters(3 << 20, 'x');
  const TrainingStart start = OneStart(NewLine(1, 10, 1) + zeros + "\n" + letters + "\n" + NewLine(2, 10, 2));
  EXPECT_EQ(SecondsOf(start), (std::vector<double>{1, 2}));
}

TEST(LogReaderTest, IgnoresNumbersOutOfRange) {
  const TrainingStart start = OneStart(
      "iteration 99999999999999999999/ 5 | elapsed time per iteration (s): 1 |\n"
      "iteration 1/ 99999999999999999999999 | elapsed time per iteration (s): 1e999 | global batch size: -7 "
      "|\n"
      "iteration 2/ 5 | elapsed time per iteration (s): -1 | lm loss: 1e-9999 |\n"
      "iteration 3/ 5 | elapsed time per iteration (s): 2 | lm loss: "
      "0.000000000000000000000000000000000000000000001 |\n");
  EXPECT_EQ(start.series.back().iteration, 3);
  EXPECT_DOUBLE_EQ(start.series.back().seconds, 2);
}

}  // namespace
}  // namespace cairn
