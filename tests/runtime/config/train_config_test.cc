#include "runtime/config/train_config.h"

#include <gtest/gtest.h>

#include <fstream>

#include "ckpt/model/placement.h"

namespace cairn {
namespace {

Result<ParsedCommandLine> Parse(std::vector<const char*> args) {
  args.insert(args.begin(), "cairn-train");
  return ParseCommandLine(static_cast<int>(args.size()), args.data());
}

TrainConfig Small() {
  TrainConfig config;
  config.num_layers = 4;
  config.hidden_size = 64;
  config.num_attention_heads = 4;
  config.vocab_size = 1000;
  config.seq_length = 32;
  config.micro_batch_size = 2;
  config.global_batch_size = 8;
  config.train_iters = 10;
  config.mock_data = true;
  return config;
}

std::string ErrorOf(TrainConfig config, int world) {
  auto result = Validate(config, world);
  return result.ok() ? "" : result.status().message();
}

TEST(TrainConfigTest, UnderscoresSeparateThousandsOnlyInNumbers) {
  const auto parsed = Parse({"--save", "2024_05_01", "--train-samples=300_000", "--exit-interval", "1_000"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->config.save, "2024_05_01");
  EXPECT_EQ(parsed->config.train_samples, 300'000);
  EXPECT_EQ(parsed->config.exit_interval, 1'000);
}

TEST(TrainConfigTest, FlagsSetTheirFields) {
  auto parsed = Parse({"--num-layers", "3", "--bf16", "--lr", "6e-4", "--rampup-batch-size", "4", "4", "100",
                       "--data-path", "a/b", "--lr-decay-style", "cosine"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->config.num_layers, 3);
  EXPECT_TRUE(parsed->config.bf16);
  EXPECT_EQ(parsed->config.lr, 6e-4);
  EXPECT_EQ(parsed->config.rampup_batch_size, (std::vector<int64_t>{4, 4, 100}));
  EXPECT_EQ(parsed->config.data_path, std::vector<std::string>{"a/b"});
  EXPECT_EQ(parsed->config.lr_decay_style, "cosine");
}

TEST(TrainConfigTest, EveryFlagIsInTheHelpOnce) {
  auto parsed = Parse({"--help"});
  ASSERT_TRUE(parsed.ok());
  for (const Flag& flag : TrainFlags())
    EXPECT_NE(parsed->text.find(fmt::format("--{} ", flag.name)), std::string::npos) << flag.name;
}

TEST(TrainConfigTest, UnknownFlagIsNamed) {
  auto parsed = Parse({"--num-layer", "3"});
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("--num-layer"), std::string::npos);
}

TEST(TrainConfigTest, CommandLineWinsOverFile) {
  const std::string path = testing::TempDir() + "/cairn_config_test.toml";
  std::ofstream(path)
      << "seq_length = 16\n[model]\nnum-layers = 7\nhidden_size = 96\n[data]\ndata-path = 'x'\n";
  auto parsed = Parse({"--config", path.c_str(), "--num-layers", "5"});
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
  EXPECT_EQ(Parse({"--config", "/nowhere/x.toml"}).status().kind(), StatusKind::kNotFound);
}

TEST(ValidateTest, DataParallelSizeIsTheRemainder) {
  TrainConfig config = Small();
  config.tensor_model_parallel_size = 2;
  config.pipeline_model_parallel_size = 2;
  auto topology = Validate(config, 8);
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_EQ(topology->dp, 2);
}

TEST(ValidateTest, NamesInconsistentNumbers) {
  TrainConfig config = Small();
  config.tensor_model_parallel_size = 2;
  EXPECT_EQ(ErrorOf(config, 3), "3 ranks are not a multiple of TP*PP = 2*1; start a multiple of 2 ranks");
  config.tensor_model_parallel_size = 3;
  EXPECT_EQ(ErrorOf(config, 3),
            "4 attention heads are not a multiple of TP=3; choose another --tensor-model-parallel-size");
  config = Small();
  config.pipeline_model_parallel_size = 5;
  EXPECT_EQ(ErrorOf(config, 5),
            "4 layers are fewer than PP=5 stages; choose a smaller --pipeline-model-parallel-size");
  config = Small();
  EXPECT_EQ(ErrorOf(config, 3), "--global-batch-size 8 is not a multiple of --micro-batch-size 2 * DP=3");
  config.max_position_embeddings = 16;
  EXPECT_EQ(ErrorOf(config, 1), "--seq-length 32 is more than --max-position-embeddings 16");
}

TEST(ValidateTest, TrainingNeedsOneLengthAndOneSource) {
  TrainConfig config = Small();
  config.train_samples = 80;
  EXPECT_EQ(ErrorOf(config, 1), "give one of --train-iters and --train-samples");
  config = Small();
  config.data_path = {"x"};
  EXPECT_EQ(ErrorOf(config, 1), "give one of --data-path, --train-weighted-split-paths and --mock-data");
}

TEST(ValidateTest, RefusesATrainingWithoutSteps) {
  TrainConfig config = Small();
  config.train_iters = 0;
  config.train_samples = 7;
  EXPECT_EQ(ErrorOf(config, 1),
            "--train-samples 7 is less than the first batch of 8 samples; nothing would be trained");
  config.rampup_batch_size = {2, 2, 100};
  EXPECT_EQ(ErrorOf(config, 1), "");
}

// megatron-core's OptimizerParamScheduler asserts it.
TEST(ValidateTest, TheWarmUpEndsBeforeTheDecay) {
  const std::string mark = "must be shorter than the decay";
  TrainConfig config = Small();
  config.lr_warmup_iters = 9;
  EXPECT_EQ(ErrorOf(config, 1), "");
  config.lr_warmup_iters = 10;
  EXPECT_NE(ErrorOf(config, 1).find("the warm-up of 80 samples"), std::string::npos);
  EXPECT_NE(ErrorOf(config, 1).find(mark), std::string::npos);
  config.lr_decay_iters = 11;
  EXPECT_EQ(ErrorOf(config, 1), "");
  config.lr_decay_iters = 0;
  config.lr_decay_style = "constant";  // as DeepSpeed's WarmupLR
  EXPECT_EQ(ErrorOf(config, 1), "");
  config = Small();
  config.lr_warmup_fraction = 1;
  EXPECT_NE(ErrorOf(config, 1).find(mark), std::string::npos);
}

TEST(ValidateTest, HalvesOfLayersAreGivenInPairs) {
  TrainConfig config = Small();
  config.checkpoint_activations = config.split_transformers = true;
  config.recompute_num_layers = 2;  // of BigScience's ZeRO-3 table
  EXPECT_EQ(ErrorOf(config, 1), "");
  config.recompute_num_layers = 3;
  EXPECT_NE(ErrorOf(config, 1).find("--recompute-num-layers 3 would end within a layer"), std::string::npos);
  config.recompute_method = "block";
  EXPECT_EQ(ErrorOf(config, 1), "");
}

TEST(ValidateTest, AcceptsTheChoicesOfTheHelp) {
  TrainConfig config = Small();
  config.lr_decay_style = "cosinus";
  EXPECT_EQ(ErrorOf(config, 1), "--lr-decay-style is 'cosinus'; it must be one of constant, linear, cosine");
  config = Small();
  config.device = "";
  EXPECT_EQ(ErrorOf(config, 1), "--device is ''; it must be one of cpu, cuda");
  config = Small();
  config.zero_stage = 4;
  EXPECT_EQ(ErrorOf(config, 1), "--zero-stage is 4; it must be 0 to 3");
  config = Small();
  config.loss_scale = -1;
  EXPECT_EQ(ErrorOf(config, 1), "--loss-scale is -1; it must be at least 0");
}

TEST(ValidateTest, InterleavedStagesMustFitLayersAndBatch) {
  TrainConfig config = Small();
  config.pipeline_model_parallel_size = 2;
  config.num_layers_per_virtual_pipeline_stage = 1;
  const auto topology = Validate(config, 2);
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_EQ(topology->virtual_stages, 2);
  config.global_batch_size = 6;
  EXPECT_NE(ErrorOf(config, 2).find("multiples of micro-batch-size * DP * PP = 4; 6 is not"),
            std::string::npos);
  config.global_batch_size = 8;
  config.rampup_batch_size = {2, 2, 100};
  EXPECT_NE(ErrorOf(config, 2).find("DP * PP = 4; 2 is not"), std::string::npos);
  config.rampup_batch_size = {};
  config.pipeline_schedule = "gpipe";
  EXPECT_NE(ErrorOf(config, 2).find("one run of layers per stage"), std::string::npos);
  config.num_layers_per_virtual_pipeline_stage = 2;  // all of a stage's: one run
  EXPECT_EQ(ErrorOf(config, 2), "");
  config.num_layers_per_virtual_pipeline_stage = 3;
  EXPECT_NE(ErrorOf(config, 2).find("4 layers do not divide into PP=2"), std::string::npos);
  config.pipeline_model_parallel_size = 1;
  EXPECT_NE(ErrorOf(config, 1).find("PP is 1"), std::string::npos);
}

TEST(ValidateTest, AcceptsTheNumberOfInterleavedStages) {
  TrainConfig config = Small();
  config.pipeline_model_parallel_size = 2;
  config.num_virtual_stages_per_pipeline_rank = 2;
  EXPECT_EQ(Validate(config, 2)->virtual_stages, 2);
  config.num_layers = 5;  // as even as possible
  EXPECT_EQ(LayersPerChunk(5, *Validate(config, 2)).value(), (std::vector<int>{2, 1, 1, 1}));
  config.layers_per_stage = {1, 1, 1, 2};
  EXPECT_EQ(LayersPerChunk(5, *Validate(config, 2)).value(), (std::vector<int>{1, 1, 1, 2}));
  config.layers_per_stage = {2, 3};
  EXPECT_NE(ErrorOf(config, 2).find("2 numbers for 4 runs of layers"), std::string::npos);
  config.layers_per_stage = {};
  config.num_layers = 3;
  EXPECT_NE(ErrorOf(config, 2).find("3 layers are fewer than the 4 runs"), std::string::npos);
  config.num_layers_per_virtual_pipeline_stage = 1;
  EXPECT_NE(ErrorOf(config, 2).find("exclude each other"), std::string::npos);
}

TEST(ValidateTest, RampupMustFitTheBatch) {
  TrainConfig config = Small();
  config.rampup_batch_size = {2, 4, 100};
  EXPECT_NE(ErrorOf(config, 1).find("never reaches"), std::string::npos);
  config.rampup_batch_size = {2, 2, 100};
  EXPECT_EQ(ErrorOf(config, 1), "");
  EXPECT_NE(ErrorOf(config, 2).find("multiples of"), std::string::npos);
}

}  // namespace
}  // namespace cairn
