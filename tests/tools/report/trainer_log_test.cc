// Logs of transformers' Trainer 5.23, with and without progress bars, and of 2021.
#include "tools/report/trainer_log.h"

#include <gtest/gtest.h>

#include "tools/report/run_summary.h"

namespace cairn {
namespace {

constexpr const char* kWithBars =
    "[transformers] ***** Running training *****\n"
    "[transformers]   Num examples = 64\n"
    "[transformers]   Num Epochs = 3\n"
    "[transformers]   Instantaneous batch size per device = 4\n"
    "[transformers]   Total train batch size (w. parallel, distributed & accumulation) = 8\n"
    "[transformers]   Gradient Accumulation steps = 2\n"
    "[transformers]   Total optimization steps = 20\n"
    "[transformers]   Number of trainable parameters = 4,368\n"
    "\r  0%|          | 0/20 [00:00<?, ?it/s]\r 20%|██        | 4/20 [00:03<00:13,  1.17it/s]\r         "
    "\r{'loss': '3.711', 'grad_norm': '1.597', 'learning_rate': '4e-05', 'epoch': '0.625'}\n"
    "\r 25%|██▌       | 5/20 [00:04<00:12,  1.17it/s]\r 40%|████      | 8/20 [00:06<00:09,  1.24it/s]\r      "
    "\r{'loss': '3.701', 'grad_norm': '1.591', 'learning_rate': '2.75e-05', 'epoch': '1.25'}\n"
    "\r 50%|█████     | 10/20 [00:06<00:05,  2.00it/s]\n"
    "***** Running Evaluation *****\n"
    "\r  0%|          | 0/1 [00:00<?, ?it/s]\x1b[A\r         \r\n"
    "\r     \r\x1b[A{'eval_loss': '3.699', 'eval_runtime': '0.0184', 'epoch': '1.25'}\n"
    "\r100%|██████████| 1/1 [00:00<00:00, 1514.74it/s]\x1b[A\n"
    "\r       \x1b[A[transformers] Saving model checkpoint to o/checkpoint-10\n"
    "\r 75%|███████▌  | 15/20 [00:08<00:01,  3.84it/s]\r         "
    "\r{'loss': '3.696', 'grad_norm': '1.617', 'learning_rate': '1.5e-05', 'epoch': '1.875'}\n"
    "\r 75%|███████▌  | 15/20 [00:08<00:01,  3.84it/s]\r 80%|████████  | 16/20 [00:08<00:01,  3.66it/s]"
    "\r 90%|█████████ | 18/20 [00:08<00:00,  4.94it/s]\r          "
    "\r{'loss': '3.692', 'grad_norm': '1.635', 'learning_rate': '2.5e-06', 'epoch': '2.5'}\n"
    "\r100%|██████████| 20/20 [00:08<00:00,  6.34it/s]\n";
constexpr const char* kEnd =
    "\r          \r{'train_runtime': '8.841', 'train_samples_per_second': '18.1', "
    "'train_steps_per_second': '2.262', 'train_loss': '3.702', 'epoch': '2.5'}\n";

std::vector<RunSummary> LogOfText(const std::string& text) {
  std::vector<TrainingLog> logs;
  logs.push_back(ReadTrainingText(text, "a.out"));
  std::vector<RunSummary> summaries;
  for (const TrainingRun& run : JoinRuns(std::move(logs))) summaries.push_back(Summarize(run, {}));
  return summaries;
}

TEST(TrainerLogTest, ReadsStepsAndTimesOfProgressBars) {
  const auto runs = LogOfText(std::string(kWithBars) + kEnd);
  ASSERT_EQ(runs.size(), 1u);
  const RunSummary& run = runs[0];
  EXPECT_EQ(run.end, RunEnd::kOk) << run.cause;
  EXPECT_EQ(run.iterations, 20);
  EXPECT_EQ(run.sum.total, 20);
  std::vector<int> steps;
  for (const Sample& sample : run.samples) steps.push_back(sample.iteration);
  EXPECT_EQ(steps, (std::vector<int>{5, 10, 15, 20})) << "the bar below a line has its step";
  EXPECT_DOUBLE_EQ(*run.loss, 3.692);
  EXPECT_DOUBLE_EQ(run.sum.last_grad_norm, 1.635);
  EXPECT_DOUBLE_EQ(run.sum.validation_loss, 3.699);
  EXPECT_EQ(std::tie(run.config.mbs, run.config.gas, run.config.gbs),
            std::tuple(std::optional<int64_t>(4), std::optional<int64_t>(2), std::optional<int64_t>(8)));
  EXPECT_DOUBLE_EQ(*run.parameters, 4368);
  EXPECT_EQ(run.sum.checkpoints, 1);
  EXPECT_LT(run.samples[1].seconds, run.samples[0].seconds) << "4 s, then 2 s of five steps";
}

TEST(TrainerLogTest, TakesTheMeanFromTheLastLine) {
  const std::string lines =
      "{'loss': 3.654, 'learning_rate': 4e-05, 'epoch': 0.625}\n"
      "{'loss': 3.649, 'learning_rate': 2.75e-05, 'epoch': 1.25}\n"
      "{'loss': 3.643, 'learning_rate': 1.5e-05, 'epoch': 1.875}\n"
      "{'loss': 3.64, 'learning_rate': 2.5e-06, 'epoch': 2.5}\n";
  const auto runs = LogOfText(lines +
                              "{'train_runtime': 3.302, 'train_samples_per_second': 48.45, "
                              "'train_steps_per_second': 6.057, 'train_loss': 3.647, 'epoch': 2.5}\n");
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].end, RunEnd::kOk);
  EXPECT_EQ(runs[0].iterations, 20);
  EXPECT_EQ(runs[0].samples[0].iteration, 5);
  EXPECT_DOUBLE_EQ(*runs[0].sec_per_it, 3.302 / 20);
  EXPECT_EQ(runs[0].config.gbs, 8);
  EXPECT_NEAR(*runs[0].samples_per_s, 48.45, 0.01);

  const auto old =
      LogOfText(lines + "{'train_runtime': 273.0, 'train_samples_per_second': 0.073, 'epoch': 2.5}\n");
  EXPECT_EQ(old[0].iterations, 20) << "steps a second, in the versions before 4.7";
  EXPECT_DOUBLE_EQ(*old[0].sec_per_it, 273.0 / 20);
  EXPECT_FALSE(old[0].config.gbs);
}

TEST(TrainerLogTest, ARunThatStopsEarlyIsIncompleteOrFailed) {
  const std::string text = kWithBars;
  const size_t second = text.find("\r{'loss': '3.701'");
  EXPECT_EQ(LogOfText(text.substr(0, second))[0].end, RunEnd::kIncomplete);
  EXPECT_EQ(LogOfText(text.substr(0, second))[0].cause, "ends at 5 of 20");
  EXPECT_EQ(LogOfText(text.substr(0, second) + "ValueError: x\n")[0].end, RunEnd::kFailed);
  const auto twice = LogOfText(text + kEnd + text + kEnd);
  ASSERT_EQ(twice.size(), 2u);
  for (const RunSummary& run : twice) EXPECT_EQ(run.iterations, 20);
}

TEST(TrainerLogTest, OtherNumbersAreNotALoss) {
  const auto runs = LogOfText("{'loss': nan, 'epoch': 0.5}\n{'loss': , 'epoch': x}\n{'loss': '\n{'loss': ");
  EXPECT_EQ(runs[0].nans, 1);
  EXPECT_EQ(runs[0].samples.size(), 4u);
}

}  // namespace
}  // namespace cairn
