#include "runtime/config/train_config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "ckpt/model/placement.h"
#include "parse_words.h"

namespace cairn {
namespace {

// A small model, and these words.
Result<ParsedCommandLine> Small(const std::string& words) {
  return ParseWords(
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --vocab-size 1000 --seq-length 32 "
      "--micro-batch-size 2 --global-batch-size 8 --train-iters 10 --mock-data " +
      words);
}

// What it says to them on this many ranks; empty: nothing.
std::string Said(const std::string& words, int world) {
  const auto parsed = Small(words);
  if (!parsed.ok()) return parsed.status().message();
  TrainConfig config = parsed->config;
  return Validate(config, world).status().message();
}

TEST(TrainConfigTest, UnderscoresSeparateThousandsOnlyInNumbers) {
  const auto parsed = ParseWords("--save 2024_05_01 --train-samples=300_000 --exit-interval 1_000");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->config.save, "2024_05_01");
  EXPECT_EQ(parsed->config.train_samples, 300'000);
  EXPECT_EQ(parsed->config.exit_interval, 1'000);
}

TEST(TrainConfigTest, FlagsSetTheirFields) {
  const TrainConfig config = ConfigOf(
      "--num-layers 3 --bf16 --lr 6e-4 --rampup-batch-size 4 4 100 --data-path a/b --lr-decay-style cosine");
  EXPECT_TRUE(config.num_layers == 3 && config.bf16 && config.lr == 6e-4 &&
              config.lr_decay_style == "cosine");
  EXPECT_EQ(config.rampup_batch_size, (std::vector<int64_t>{4, 4, 100}));
  EXPECT_EQ(config.data_path, std::vector<std::string>{"a/b"});
}

TEST(TrainConfigTest, EveryFlagIsInTheHelpOnce) {
  auto parsed = ParseWords("--help");
  ASSERT_TRUE(parsed.ok());
  for (const Flag& flag : TrainFlags())
    EXPECT_NE(parsed->text.find(fmt::format("--{} ", flag.name)), std::string::npos) << flag.name;
}

TEST(TrainConfigTest, CommandLineWinsOverFile) {
  const std::string path = testing::TempDir() + "/cairn_config_test.toml";
  std::ofstream(path)
      << "seq_length = 16\n[model]\nnum-layers = 7\nhidden_size = 96\n[data]\ndata-path = 'x'\n";
  auto parsed = ParseWords("--config " + path + " --num-layers 5");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->config.num_layers, 5);
  EXPECT_EQ(parsed->config.hidden_size, 96);
  EXPECT_EQ(parsed->config.seq_length, 16);
  EXPECT_EQ(parsed->config.data_path, std::vector<std::string>{"x"});
}

TEST(TrainConfigTest, TomlErrorsNameFileAndLine) {
  TrainConfig config;
  EXPECT_EQ(ApplyToml("\nnum-layers = 'four'\n", "t.toml", {}, config).message(),
            "t.toml:2: the value of 'num-layers' has the wrong type");
  EXPECT_EQ(ApplyToml("layers = 4\n", "t.toml", {}, config).message(),
            "t.toml:1: unknown key 'layers'; keys are the flags of --help");
  EXPECT_EQ(ApplyToml("bf16 = \n", "t.toml", {}, config).kind(), StatusKind::kInvalidArgument);
}

TEST(TrainConfigTest, MissingFileIsNotFound) {
  EXPECT_EQ(ParseWords("--config /nowhere/x.toml").status().kind(), StatusKind::kNotFound);
}

TEST(ValidateTest, NamesTheFlagThatDoesNotFit) {
  const std::string two = "--pipeline-model-parallel-size 2 ";
  const std::string runs = two + "--num-virtual-stages-per-pipeline-rank 2 ";
  const std::string halves = "--checkpoint-activations --split-transformers --recompute-num-layers ";
  const std::string one_run = two + "--num-layers-per-virtual-pipeline-stage 1 ";
  struct Row {
    std::string words;
    int world;
    const char* says;  // empty: it fits
  };
  for (const auto& [words, world, says] : std::vector<Row>{
           {"--tensor-model-parallel-size 2", 3,
            "3 ranks are not a multiple of TP*PP = 2*1; start a multiple of 2 ranks"},
           {"--tensor-model-parallel-size 3", 3,
            "4 attention heads are not a multiple of TP=3; choose another --tensor-model-parallel-size"},
           {"--pipeline-model-parallel-size 5", 5,
            "4 layers are fewer than PP=5 stages; choose a smaller --pipeline-model-parallel-size"},
           {"", 3, "--global-batch-size 8 is not a multiple of --micro-batch-size 2 * DP=3"},
           {"--max-position-embeddings 16", 1, "--seq-length 32 is more than --max-position-embeddings 16"},
           {"--train-samples 80", 1, "give one of --train-iters and --train-samples"},
           {"--data-path x", 1, "give one of --data-path, --train-weighted-split-paths and --mock-data"},
           {"--train-iters 0 --train-samples 7", 1,
            "--train-samples 7 is less than the first batch of 8 samples; nothing would be trained"},
           {"--train-iters 0 --train-samples 7 --rampup-batch-size 2 2 100", 1, ""},
           // megatron-core's OptimizerParamScheduler asserts that the warm-up ends before the decay.
           {"--lr-warmup-iters 9", 1, ""},
           {"--lr-warmup-iters 10", 1, "the warm-up of 80 samples"},
           {"--lr-warmup-iters 10", 1, "must be shorter than the decay"},
           {"--lr-warmup-iters 10 --lr-decay-iters 11", 1, ""},
           {"--lr-warmup-iters 10 --lr-decay-style constant", 1, ""},  // as DeepSpeed's WarmupLR
           {"--lr-warmup-fraction 1", 1, "must be shorter than the decay"},
           {halves + "2", 1, ""},  // of BigScience's ZeRO-3 table
           {halves + "3", 1, "--recompute-num-layers 3 would end within a layer"},
           {halves + "3 --recompute-method block", 1, ""},
           {"--lr-decay-style cosinus", 1,
            "--lr-decay-style is 'cosinus'; it must be one of constant, linear, cosine"},
           {"--device tpu", 1, "--device is 'tpu'; it must be one of cpu, cuda"},
           {"--zero-stage 4", 1, "--zero-stage is 4; it must be 0 to 3"},
           {"--loss-scale=-1", 1, "--loss-scale is -1; it must be at least 0"},
           {one_run + "--global-batch-size 6", 2, "multiples of micro-batch-size * DP * PP = 4; 6 is not"},
           {one_run + "--rampup-batch-size 2 2 100", 2, "DP * PP = 4; 2 is not"},
           {one_run + "--pipeline-schedule gpipe", 2, "one run of layers per stage"},
           {two + "--pipeline-schedule gpipe --num-layers-per-virtual-pipeline-stage 2", 2,
            ""},  // all: one run
           {two + "--num-layers-per-virtual-pipeline-stage 3", 2, "4 layers do not divide into PP=2"},
           {"--num-layers-per-virtual-pipeline-stage 3", 1, "PP is 1"},
           {runs + "--num-layers 5 --layers-per-stage 2 3", 2, "2 numbers for 4 runs of layers"},
           {runs + "--num-layers 3", 2, "3 layers are fewer than the 4 runs"},
           {runs + "--num-layers-per-virtual-pipeline-stage 1", 2, "exclude each other"},
           {"--rampup-batch-size 2 4 100", 1, "never reaches"},
           {"--rampup-batch-size 2 2 100", 1, ""},
           {"--rampup-batch-size 2 2 100", 2, "multiples of"}}) {
    const std::string said = Said(words, world);
    EXPECT_TRUE(*says == 0 ? said.empty() : said.find(says) != said.npos) << words << ": " << said;
  }
}

TEST(ValidateTest, GivesTheTopologyAndTheLayersOfEachRun) {
  const auto topology = [](const std::string& words, int world) {
    TrainConfig config = Small("--pipeline-model-parallel-size 2 " + words)->config;
    return Validate(config, world).value();
  };
  EXPECT_EQ(topology("--tensor-model-parallel-size 2", 8).dp, 2);
  EXPECT_EQ(topology("--num-layers-per-virtual-pipeline-stage 1", 2).virtual_stages, 2);
  const std::string runs = "--num-virtual-stages-per-pipeline-rank 2 --num-layers 5 ";
  EXPECT_EQ(topology(runs, 2).virtual_stages, 2);
  EXPECT_EQ(LayersPerChunk(5, topology(runs, 2)).value(),
            (std::vector<int>{2, 1, 1, 1}));  // as even as possible
  EXPECT_EQ(LayersPerChunk(5, topology(runs + "--layers-per-stage 1 1 1 2", 2)).value(),
            (std::vector<int>{1, 1, 1, 2}));
}

}  // namespace
}  // namespace cairn
