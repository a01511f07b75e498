// Names and flags of Megatron-LM and Megatron-DeepSpeed that a command line may still have.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "parse_words.h"
#include "runtime/config/flag_aliases.h"
#include "runtime/config/ignored_flags.h"

namespace cairn {
namespace {

TEST(OlderFlagsTest, OldNamesMapToNewOnes) {
  const TrainConfig config = ConfigOf(
      "--model-parallel-size 4 --batch-size=96 --warmup 0.01 --checkpoint-num-layers 2 --gas 8 "
      "--zero-reduce-bucket-size 50000000 "
      "--distribute-checkpointed-activations --cpu-optimizer --norm-epsilon 1e-6");
  EXPECT_EQ(config.tensor_model_parallel_size, 4);
  EXPECT_EQ(config.micro_batch_size, 96);
  EXPECT_EQ(config.lr_warmup_fraction, 0.01);
  EXPECT_EQ(config.recompute_num_layers, 2);
  EXPECT_EQ(config.gradient_accumulation_steps, 8);
  EXPECT_EQ(config.reduce_bucket_size, 50'000'000);
  EXPECT_TRUE(config.partition_activations);
  EXPECT_TRUE(config.offload_optimizer);
  EXPECT_EQ(config.layernorm_epsilon, 1e-6);
  EXPECT_TRUE(config.notes.empty());
}

TEST(OlderFlagsTest, SwitchesAndValuesAreTranslated) {
  EXPECT_EQ(ConfigOf("--use-distributed-optimizer").zero_stage, 1);
  EXPECT_EQ(ConfigOf("--recompute-activations").recompute_granularity, "selective");
  EXPECT_EQ(ConfigOf("--distributed-timeout-minutes 10").distributed_timeout_seconds, 600);
  EXPECT_TRUE(ConfigOf("--remote-device cpu").offload_param);
  EXPECT_FALSE(ConfigOf("--remote-device=none").offload_param);
  EXPECT_EQ(ConfigOf("--position-embedding-type rotary").position_embedding_type, "rope");
  EXPECT_TRUE(ConfigOf("--eval-only True").skip_train);
  EXPECT_TRUE(ConfigOf("--no-train").skip_train);
  const TrainConfig grouped = ConfigOf("--num-key-value-heads 2");
  EXPECT_TRUE(grouped.group_query_attention && grouped.num_query_groups == 2);
  EXPECT_FALSE(ParseErrorOf("--remote-device nvme").empty());
  EXPECT_FALSE(ParseErrorOf("--distributed-timeout-minutes soon").empty());
}

TEST(OlderFlagsTest, UnderscoresInFlagsAreDashes) {
  const TrainConfig config = ConfigOf("--tensor_model_parallel_size=2 --num_layers 3 --save_interval 5");
  EXPECT_EQ(config.tensor_model_parallel_size, 2);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.save_interval, "5");
}

TEST(OlderFlagsTest, NumbersInListsMayHaveUnderscores) {
  EXPECT_EQ(ConfigOf("--rampup-batch-size 192 16 9_765_625 --lr 6e-5").rampup_batch_size,
            (std::vector<int64_t>{192, 16, 9'765'625}));
}

TEST(OlderFlagsTest, ObsoleteImplementationFlagsAreNotedOnce) {
  const TrainConfig config = ConfigOf(
      "--data-impl mmap --local_rank=3 --data-impl mmap --override-opt_param-scheduler "
      "--DDP-impl local --profile-ranks 0 1 --num-layers 3");
  EXPECT_EQ(config.num_layers, 3);
  ASSERT_EQ(config.notes.size(), 5u);
  EXPECT_EQ(config.notes[0], "--data-impl has no effect here: a dataset is always read in place");
}

// Each by itself, as on command lines that were really used.
TEST(OlderFlagsTest, EachFlagWithoutEffectIsNoted) {
  for (const std::string flag :
       {"--allgather-bucket-size 5000000000", "--zero-allgather-bucket-size 500", "--pin-memory",
        "--use-pin-memory", "--memory-centric-tiled-linear --tile-factor=1",
        "--memory-centric-tiled-linear --tile-factor 4",
        "--memory-centric-tiled-linear --tile-factor 4 --zero-stage 1", "--log-batch-size-to-tensorboard",
        "--log-validation-ppl-to-tensorboard"}) {
    const std::vector<std::string> notes = ConfigOf(flag).notes;
    ASSERT_EQ(notes.size(), 1u) << flag;
    EXPECT_TRUE(notes[0].starts_with(flag.substr(0, flag.find(' ')) + " has no effect here: ")) << notes[0];
  }
}

TEST(OlderFlagsTest, AFileMayContainThem) {
  TrainConfig config;
  ASSERT_TRUE(
      ApplyToml("pin_memory = true\nallgather-bucket-size = 500\nuse-flash-attn = false\ndata-impl = 'mmap'",
                "a.toml", {}, config)
          .ok());
  std::set<std::string> said;
  for (const std::string& note : config.notes) said.insert(note.substr(0, note.find(' ')));
  EXPECT_EQ(said, (std::set<std::string>{"--allgather-bucket-size", "--data-impl", "--pin-memory"}));
  EXPECT_EQ(ApplyToml("dataloader-type = 'cyclic'", "a.toml", {}, config).message(),
            "a.toml:1: --dataloader-type cyclic is not supported; only single is");
}

TEST(OlderFlagsTest, FlagsThatChangeTheTrainingAreRefused) {
  for (const std::string flag : {"--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss"})
    EXPECT_EQ(ParseErrorOf(flag), "");
  EXPECT_NE(ParseErrorOf("--eod-mask-loss --calculate-per-token-loss"), "");
}

TEST(OlderFlagsTest, ValuesThatWouldHaveAnEffectAreRefused) {
  EXPECT_EQ(ParseErrorOf("--dataloader-type cyclic"),
            "--dataloader-type cyclic is not supported; only single is");
  EXPECT_EQ(ParseErrorOf("--num-experts 1"), "");
  EXPECT_EQ(ParseErrorOf("--num-experts 64"), "--num-experts 64 is not supported; only 1 is");
}

TEST(OlderFlagsTest, UnknownFlagsSuggestTheNearest) {
  EXPECT_EQ(ParseErrorOf("--num-layer 3"),
            "cairn train does not know --num-layer (did you mean --num-layers?); see --help");
  EXPECT_EQ(ParseErrorOf("--data-inpl mmap"),
            "cairn train does not know --data-inpl (did you mean --data-impl?); see --help");
  EXPECT_EQ(ParseErrorOf("--xyz --bf16"), "cairn train does not know --xyz; see --help");
}

// A flag has one meaning: rows of the table, other names and ignored ones do not overlap.
TEST(OlderFlagsTest, EachNameIsInOneTable) {
  std::set<std::string_view> rows;
  for (const Flag& flag : TrainFlags()) rows.insert(flag.name);
  std::set<std::string_view> names = rows;
  for (const FlagAlias& alias : FlagAliases()) {
    EXPECT_TRUE(names.insert(alias.old_name).second) << alias.old_name;
    EXPECT_TRUE(rows.contains(alias.name)) << alias.name;
  }
  for (const IgnoredFlag& flag : IgnoredFlags()) EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
}

TEST(ImpliedSettingsTest, TokensAreConvertedToSamples) {
  const TrainConfig config = ConfigOf(
      "--seq-length 100 --train-samples 500 --train-tokens 30_001 --lr-decay-tokens 200 --lr-warmup-tokens "
      "1");
  EXPECT_EQ(config.train_samples, 301);
  EXPECT_EQ(config.lr_decay_samples, 2);
  EXPECT_EQ(config.lr_warmup_samples, 1);
}

TEST(ImpliedSettingsTest, OnlyWeightsMeansFinetune) {
  const TrainConfig both = ConfigOf("--load a --no-load-optim --reset-progress --no-load-rng");
  EXPECT_TRUE(both.finetune);
  EXPECT_FALSE(both.reset_progress || both.no_load_optim || both.no_load_rng);
  EXPECT_FALSE(ConfigOf("--load a --reset-progress").finetune);
}

TEST(ImpliedSettingsTest, ARecomputeMethodImpliesRecomputation) {
  EXPECT_TRUE(ConfigOf("--activations-checkpoint-method uniform").recompute());
}

TEST(ImpliedSettingsTest, DeepSpeedsBf16OptimizerImpliesZero1) {
  const TrainConfig config = ConfigOf("--deepspeed --bf16 --zero-stage 0");
  EXPECT_EQ(config.zero_stage, 1);
  EXPECT_EQ(config.notes.size(), 1u);
  EXPECT_EQ(ConfigOf("--bf16 --zero-stage 0").zero_stage, 0);
  EXPECT_EQ(ConfigOf("--deepspeed --fp16 --zero-stage 0").zero_stage, 0);
}

}  // namespace
}  // namespace cairn
