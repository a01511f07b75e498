// Lines of programs that are neither Megatron-LM's nor DeepSpeed's, in the form that each prints. The numbers
// are made up.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/report/sample_logs.h"
#include "tools/report/log_reader.h"
#include "tools/report/run_summary.h"
#include "tools/report/training_run.h"

namespace cairn {
namespace {

std::vector<TrainingStart> StartsIn(const std::string& text) {
  return ReadTrainingText(text, "x.out").starts;
}

std::vector<double> RoundedSeconds(const TrainingStart& start) {
  std::vector<double> seconds;
  for (const Sample& sample : start.series.samples())
    seconds.push_back(std::round(sample.seconds * 1e6) / 1e6);
  return seconds;
}

RunSummary SummaryOf(const std::string& text) {
  std::vector<TrainingRun> runs = JoinRuns({ReadTrainingText(text, "x.out")}, true);
  EXPECT_EQ(runs.size(), 1u);
  return Summarize(std::move(runs.at(0)), {});
}

// Argonne's Megatron-DeepSpeed: the unit of a time is in its key, and "=" separates.
TEST(OtherTrainersTest, TakesTheUnitOfATimeFromItsKey) {
  const auto starts = StartsIn(
      "[2026-11-02 22:59:19.287338][INFO][training_log:661] -  iteration=       1/    5000 | "
      "consumed_samples=         768 | consumed_tokens=     3145728 | elapsed_time_per_iteration_ms=4133.9 | "
      "learning_rate=9.4372e-09 | global_batch_size=768 | lm loss=11.167250 | loss_scale=1.0 | "
      "grad_norm=6.363 | actual_seqlen= 4096 | number_of_skipped_iterations=  1 | "
      "number_of_nan_iterations=  2 | samples_per_second=25.972 | [LM]TFLOPs=20.30 |\n"
      "iteration=2/5000 | elapsed_time_per_iteration_s=4.5 | lm_loss=10.5\n"
      "iteration=3/5000, step_time_ms=1500, lm_loss=9.5\n"
      "iteration 4/ 5000 | time per iter [us]: 2500000 | lm loss: 9.25 |\n"
      "iteration 5/ 5000 | time per iteration in min: 0.05 | lm loss: 9.125 |\n"
      "iteration 6/ 5000 | elapsed time per iteration: 1250 ms | lm loss: 9 |\n");
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(RoundedSeconds(starts[0]), (std::vector<double>{4.1339, 4.5, 1.5, 2.5, 3, 1.25}));
  const Sample& first = starts[0].series.front();
  EXPECT_EQ(first.global_batch, 768);
  EXPECT_FLOAT_EQ(first.loss, 11.16725f);
  EXPECT_FLOAT_EQ(first.grad_norm, 6.363f);
  EXPECT_EQ(first.skipped, 1);
  EXPECT_EQ(first.nans, 2);
  EXPECT_EQ(starts[0].config.seq, 4096);
  EXPECT_EQ(starts[0].total, 5000);
  EXPECT_EQ(starts[0].last_loss, 9);
}

// nanotron writes at most three digits: enough for a time, not for a count.
TEST(OtherTrainersTest, ShortenedNumbersAreTimesButNotCounts) {
  const auto starts = StartsIn(
      "[default0]:11/02/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node1]: iteration: 1 / 20 | consumed_tokens: 2.1M "
      "| elapsed_time_per_iteration_ms: 4.13K | tokens_per_sec: 508K | global_batch_size: 1.02K | lm_loss: "
      "11.2 | lr: 0.0001 | model_tflops_per_gpu: 210 | hardware_tflops_per_gpu: 260 | grad_norm: 1.5\n"
      "[default0]:11/02/2026 10:00:01 [INFO|DP=0|PP=0|TP=0|node1]: iteration: 2 / 20 | "
      "elapsed_time_per_iteration_ms: 985 | global_batch_size: 1K | lm_loss: 10.5\n");
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(RoundedSeconds(starts[0]), (std::vector<double>{4.13, 0.985}));
  for (const Sample& sample : starts[0].series.samples()) EXPECT_EQ(sample.global_batch, -1);
  EXPECT_EQ(starts[0].last_loss, 10.5);
  EXPECT_EQ(starts[0].logged_tflops_sum, 210);
}

std::string Titan(const std::string& rank, const std::string& time, const std::string& text) {
  return rank + "[titan] 2026-11-02 16:04:" + time + " - root - INFO - " + text + "\n";
}
std::string TitanStep(const std::string& rank, const std::string& time, int step, double loss) {
  return Titan(
      rank, time,
      fmt::format("\x1b[31mstep: {:2}  \x1b[32mloss: {:8.5f}  \x1b[38;2;180;60;0mgrad_norm:  0.8319  "
                  "\x1b[36mmemory:  9.46GiB(64.99%)  \x1b[34mtps: 7,282  tflops: 1,020.52  "
                  "mfu: 0.17%\x1b[0m",
                  step, loss));
}
std::string TitanBegin(const std::string& rank, int first) {
  return Titan(rank, "40,000",
               "Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=4, cp=1, tp=2, ep=1") +
         Titan(rank, "41,000", "Model llama3 8B size: 8,030,261,248 total parameters") +
         Titan(rank, "42,000",
               "Trainer is initialized with local batch size 2, global batch size 32, gradient accumulation "
               "steps 2, sequence length 8192, total steps 30 (warmup 2)") +
         Titan(rank, "44,338", fmt::format("Training starts at step {}", first));
}

TEST(OtherTrainersTest, TimesTorchtitanStepsByItsLines) {
  const std::string log =
      TitanBegin("[rank0]:", 1) + TitanStep("[rank0]:", "46,338", 1, 8.1) +
      TitanStep("[rank1]:", "46,341", 1, 8.1) + TitanStep("[rank0]:", "51,338", 11, 3.5) +
      TitanStep("[rank1]:", "51,339", 11, 3.5) +
      Titan("[rank0]:", "52,000", "validate step: 11  loss:  3.7500  memory:  9.46GiB(64.99%)  tps: 9,000") +
      Titan("[rank0]:", "52,100", "validate step: 12  loss:  nan  memory:  9.46GiB(64.99%)  tps: 9,000") +
      Titan("[rank0]:", "53,000",
            "Finished saving the checkpoint (or staging if async is enabled)in 1.53 seconds.") +
      Titan("[rank1]:", "53,000",
            "Finished saving the checkpoint (or staging if async is enabled)in 1.53 seconds.") +
      TitanStep("[rank0]:", "58,838", 21, 2.5) + Titan("[rank0]:", "59,000", "Training completed");
  const auto starts = StartsIn(log);
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(RoundedSeconds(starts[0]), (std::vector<double>{2, 0.5, 0.75}));
  EXPECT_EQ(starts[0].series.back().iteration, 21);
  EXPECT_EQ(starts[0].validation_loss, 3.75);
  EXPECT_EQ(starts[0].reserved_gib, 9.46);
  EXPECT_EQ(starts[0].last_loss, 2.5);
  EXPECT_FLOAT_EQ(starts[0].series.back().grad_norm, 0.8319f);
  EXPECT_EQ(starts[0].checkpoints, 1);
  EXPECT_EQ(starts[0].checkpoint_seconds, 1.53);
  EXPECT_TRUE(starts[0].done);
  const RunSummary run = SummaryOf(log);
  EXPECT_EQ(run.config.gpus, 16);
  EXPECT_EQ(run.config.dp, 8);
  EXPECT_EQ(run.config.tp, 2);
  EXPECT_EQ(run.config.mbs, 2);
  EXPECT_EQ(run.config.gbs, 32);
  EXPECT_EQ(run.config.seq, 8192);
  EXPECT_EQ(run.parameters, 8030261248.0);
  EXPECT_EQ(run.tflops_logged, 1020.52);
}

TEST(OtherTrainersTest, TorchtitanMayRestartInTheSameLog) {
  const auto starts =
      StartsIn(TitanBegin("", 1) + TitanStep("", "46,338", 1, 8.1) + TitanStep("", "46,838", 2, 8.0) +
               TitanBegin("", 2) + TitanStep("", "45,338", 2, 8.0));
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_EQ(RoundedSeconds(starts[1]), (std::vector<double>{1}));
  EXPECT_EQ(starts[1].config.tp, 2);
}

TEST(OtherTrainersTest, ReadsNanoGpt) {
  const auto starts = StartsIn(
      "number of parameters: 123.59M\n"
      "step 0: train loss 10.9898, val loss 10.9876\n"
      "iter 0: loss 10.9886, time 35392.33ms, mfu -100.00%\n"
      "2026-11-02 09:30:39 iter 10: loss 9.5, time 562.5ms, mfu 15.34%\n"
      "iter 20: loss nan, time 561.25ms\n"
      "step 20: train loss 4.0390, val loss 4.0427\n");
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(RoundedSeconds(starts[0]), (std::vector<double>{35.39233, 0.5625, 0.56125}));
  EXPECT_EQ(starts[0].validation_loss, 4.0427);
  EXPECT_EQ(starts[0].series.back().nans, 1);
  EXPECT_EQ(starts[0].config.size_b, 0.12359);
}

TEST(OtherTrainersTest, AMixtureHasNoComputedSizeOrTflops) {
  const std::string dump = Dump(8, 12, 384, 2, 2048), line = NewLine(1, 10, 10) + NewLine(2, 10, 10);
  EXPECT_TRUE(SummaryOf(dump + line).parameters && SummaryOf(dump + line).formulas.megatron);
  for (const char* dense : {"None", "1", "[1]"})
    EXPECT_TRUE(SummaryOf(fmt::format("  num_experts ..................................... {}\n", dense) +
                          dump + line)
                    .parameters)
        << dense;
  const RunSummary mixture =
      SummaryOf(dump + "  num_experts ..................................... 8\n" + line);
  EXPECT_FALSE(mixture.parameters);
  EXPECT_FALSE(mixture.formulas.megatron || mixture.formulas.simple || mixture.formulas.model);
  EXPECT_EQ(mixture.tflops, 100.25) << "as logged";
  const RunSummary titan = SummaryOf(
      Titan("", "40,000", "Total parameter count: dense 23,173,376, sparse 9,840,640, active 28,098,816") +
      TitanBegin("", 1) + TitanStep("", "46,338", 1, 8.1));
  EXPECT_EQ(titan.parameters, 8030261248.0);
  ASSERT_TRUE(titan.formulas.simple);
  EXPECT_FALSE(titan.formulas.megatron);
}

// DeepSeek-V3 as Megatron-LM dumps its arguments.
TEST(OtherTrainersTest, AMixtureCountsTheExpertsThatATokenVisits) {
  constexpr std::pair<const char*, const char*> kArguments[] = {
      {"num_layers", "61"},
      {"hidden_size", "7168"},
      {"num_attention_heads", "128"},
      {"ffn_hidden_size", "18432"},
      {"seq_length", "4096"},
      {"padded_vocab_size", "129280"},
      {"swiglu", "True"},
      {"bf16", "True"},
      {"untie_embeddings_and_output_weights", "True"},
      {"multi_latent_attention", "True"},
      {"kv_channels", "128"},
      {"q_lora_rank", "1536"},
      {"kv_lora_rank", "512"},
      {"qk_head_dim", "128"},
      {"qk_pos_emb_head_dim", "64"},
      {"v_head_dim", "128"},
      {"num_experts", "256"},
      {"moe_router_topk", "8"},
      {"moe_ffn_hidden_size", "2048"},
      {"moe_shared_expert_intermediate_size", "2048"},
      {"recompute_granularity", "None"},
      {"expert_model_parallel_size", "64"},
      {"global_batch_size", "8192"},
      {"world_size", "1024"}};
  std::string dump;
  for (const auto& [name, value] : kArguments)
    dump += fmt::format("  {} ............................... {}\n", name, value);
  std::string layers = "  moe_layer_freq .................................. [0, 0, 0";
  for (int i = 3; i < 61; ++i) layers += ", 1";
  const std::string lines = CoreLine(1, 10, 25.26) + CoreLine(2, 10, 25.26);
  const RunSummary run = SummaryOf(dump + layers + "]\n" + lines);
  EXPECT_EQ(run.parameters, 671026404352.0);
  EXPECT_EQ(run.config.ep, 64);
  RunConfig given = run.config;  // as by --num-experts
  given.mixture.reset();
  EXPECT_EQ(ActiveParameters(given), 37552282624.0);
  ASSERT_TRUE(run.formulas.model && run.formulas.simple);
  // A token takes 249.7e9 operations, as Megatron Bridge publishes them without multi-token prediction; the
  // log has a batch of 1024.
  EXPECT_NEAR(*run.formulas.model / (249.7e9 * 4096 * 1024 / (25.26 * 1024 * 1e12)), 1, 0.004);
  EXPECT_NEAR(*run.formulas.simple / (6 * 37552282624.0 * 4096 * 1024 / (25.26 * 1024 * 1e12)), 1, 1e-6);
  std::string without = dump + layers + "]\n" + lines;
  without.erase(without.find("  moe_router_topk"), 10);
  EXPECT_FALSE(SummaryOf(without).parameters);
  EXPECT_FALSE(
      SummaryOf(dump + "  moe_layer_freq .................................. ([0]*3+[1]*58)\n" + lines)
          .parameters);
}

TEST(OtherTrainersTest, NamesUtf16) {
  const std::string text = NewLine(1, 10, 3);
  for (const bool mark : {false, true})
    for (const bool little : {false, true}) {
      std::string wide = !mark ? "" : little ? "\xff\xfe" : "\xfe\xff";
      for (const char c : text) wide += little ? std::string{c, '\0'} : std::string{'\0', c};
      const auto starts = StartsIn(wide);
      EXPECT_TRUE(starts[0].series.empty());
      EXPECT_EQ(starts[0].why_empty, "UTF-16; use iconv -f UTF-16 -t UTF-8 FILE | cairn report -");
    }
  EXPECT_EQ(StartsIn(std::string(100, '\0') + "x")[0].why_empty, "binary data, not a log");
}

}  // namespace
}  // namespace cairn
