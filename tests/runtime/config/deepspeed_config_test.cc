// DeepSpeed's JSON, as in jobs of BigScience and transformers.
#include "runtime/config/deepspeed_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "parse_words.h"

namespace cairn {
namespace {

class DeepSpeedConfigTest : public testing::Test {
 protected:
  // A command line with this JSON as DeepSpeed's file.
  std::string With(const std::string& json, const std::string& words = "") {
    std::ofstream(path_) << json;
    return "--deepspeed --deepspeed_config " + path_ + " " + words;
  }
  std::string ErrorOf(const std::string& json, const std::string& words = "") {
    const std::string error = ParseErrorOf(With(json, words));
    return error.starts_with(path_) ? error.substr(path_.size()) : error;
  }

  const std::string path_ = testing::TempDir() + "ds_config_test-" + std::to_string(::getpid()) + ".json";
};

// meg_ds_3d_gpt2_perf_n16.slurm.
TEST_F(DeepSpeedConfigTest, TheFilesLossScaleIsUsedAsInDeepSpeed) {
  const TrainConfig config = ConfigOf(With(R"({
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 256, "gradient_clipping": 1.0,
    "prescale_gradients": true, "zero_optimization": {"stage": 0},
    "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1,
             "initial_scale_power": 12},
    "steps_per_print": 2000, "wall_clock_breakdown": false})",
                                           "--loss-scale 12 --fp16 --micro-batch-size 4 --clip-grad 1.0"));
  EXPECT_EQ(config.loss_scale, 0);
  EXPECT_EQ(config.initial_loss_scale, 4096);
  EXPECT_EQ(config.loss_scale_window, 500);
  EXPECT_EQ(config.gradient_accumulation_steps, 256);
  ASSERT_EQ(config.notes.size(), 2u);
  EXPECT_EQ(config.notes[0], "--loss-scale 12 has no effect: as in DeepSpeed, " + path_ +
                                 " takes precedence, and its fp16.loss_scale is 0");
  EXPECT_EQ(config.notes[1],
            path_ +
                ": prescale_gradients, steps_per_print, wall_clock_breakdown have no effect here: they tune "
                "DeepSpeed's own implementation");
}

// meg_ds_zero_gpt2_perf_n16_offload.slurm.
TEST_F(DeepSpeedConfigTest, AcceptsOffloadAndKnownMisspeltKeys) {
  const TrainConfig config = ConfigOf(With(
      R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
          "offload_param": {"device": "cpu", "pin_memory": true}, "stage3_max_live_parameters": 1e9,
          "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 3686,
          "stage3_param_persitence_threshold": 640, "reduce_bucket_size": 4096, "contiguous_gradients": true},
          "zero_allow_untested_optimizer": false})",
      "--zero-stage 3 --zero-reduce-bucket-size 50000000"));
  EXPECT_EQ(config.zero_stage, 3);
  EXPECT_TRUE(config.offload_optimizer && config.offload_param);
  EXPECT_EQ(config.stage3_max_live_parameters, 1'000'000'000);
  EXPECT_EQ(config.stage3_prefetch_bucket_size, 3686);
  EXPECT_EQ(config.stage3_param_persistence_threshold, 640);
  EXPECT_EQ(config.reduce_bucket_size, 4096);  // DeepSpeed never saw Megatron's flag
}

TEST_F(DeepSpeedConfigTest, ReadsOlderOffloadSwitches) {
  const TrainConfig config = ConfigOf(With(
      R"({"zero_optimization": {"stage": 3, "cpu_offload": true, "cpu_offload_params": true,
          "cpu_offload_use_pin_memory": true}})"));
  EXPECT_TRUE(config.offload_optimizer && config.offload_param);
  const TrainConfig none = ConfigOf(
      With(R"({"zero_optimization": {"offload_optimizer": {"device": "none", "pin_memory": true}}})"));
  EXPECT_FALSE(none.offload_optimizer);
}

// hf_ds_gpt2_perf_n16_all_offl.slurm. For "auto" buckets transformers computes sizes from the width.
TEST_F(DeepSpeedConfigTest, AutoTakesValuesFromTheCommandLine) {
  TrainConfig config = ConfigOf(With(
      R"({"fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 8},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                                    "weight_decay": 0.02}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                       "warmup_num_steps": "auto"}},
          "zero_optimization": {"stage": 3, "overlap_comm": true, "sub_group_size": 1e14,
            "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto", "stage3_gather_fp16_weights_on_model_save": false},
          "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
          "train_micro_batch_size_per_gpu": "auto"})",
      "--fp16 --lr 3e-4 --lr-warmup-iters 8 --micro-batch-size 12 --adam-beta2 0.95"));
  EXPECT_EQ(config.initial_loss_scale, 256);
  EXPECT_EQ(config.optimizer, "adam");
  EXPECT_EQ(config.lr, 3e-4);
  EXPECT_EQ(config.weight_decay, 0.02);
  EXPECT_EQ(config.adam_beta2, 0.95);
  EXPECT_EQ(config.lr_decay_style, "constant");
  EXPECT_EQ(config.lr_warmup_style, "log");
  EXPECT_EQ(config.lr_warmup_iters, 8);
  EXPECT_EQ(config.micro_batch_size, 12);
  config.hidden_size = 100;  // of the checkpoint of --load
  FillAutoSizes(config);
  EXPECT_EQ(config.reduce_bucket_size, 10'000);
  EXPECT_EQ(config.stage3_prefetch_bucket_size, 9'000);
  EXPECT_EQ(config.stage3_param_persistence_threshold, 1'000);
  const TrainConfig given = ConfigOf(
      With(R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}})", "--reduce-bucket-size 7"));
  EXPECT_EQ(given.reduce_bucket_size, 7);
}

TEST_F(DeepSpeedConfigTest, OptimizerAndScheduleSetTheirFlags) {
  const TrainConfig config = ConfigOf(With(
      R"({"optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.99], "eps": 1e-6,
                                                   "weight_decay": 3e-7, "adam_w_mode": true}},
          "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0.0001, "warmup_max_lr": 0.001,
            "warmup_num_steps": 10, "warmup_type": "linear", "total_num_steps": 100}},
          "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true,
            "number_checkpoints": 4, "contiguous_memory_optimization": false}})"));
  EXPECT_EQ(config.lr, 0.001);
  EXPECT_EQ(config.adam_beta1, 0.8);
  EXPECT_EQ(config.adam_beta2, 0.99);
  EXPECT_EQ(config.adam_eps, 1e-6);
  EXPECT_EQ(config.lr_decay_style, "linear");
  EXPECT_EQ(config.lr_decay_iters, 100);
  EXPECT_EQ(config.lr_warmup_iters, 10);
  EXPECT_EQ(config.lr_warmup_init, 0.0001);
  EXPECT_EQ(config.lr_warmup_style, "linear");
  EXPECT_TRUE(config.partition_activations && config.checkpoint_in_cpu);
}

TEST_F(DeepSpeedConfigTest, InitialLossScaleDefaultsToDeepSpeeds) {
  EXPECT_EQ(ConfigOf(With(R"({"fp16": {"enabled": true}})")).initial_loss_scale, 65536);
  EXPECT_EQ(ConfigOf(With(R"({"fp16": {"enabled": true}})", "--initial-loss-scale 8")).initial_loss_scale, 8);
  EXPECT_EQ(ConfigOf(With(R"({"fp16": {"enabled": false, "loss_scale": 4}})")).loss_scale, 0);
}

// tr11-176B-ml.slurm.
TEST_F(DeepSpeedConfigTest, Bf16PartitionsOptimizerStates) {
  const TrainConfig config = ConfigOf(
      With(R"({"train_batch_size": 2048, "zero_optimization": {"stage": 0}, "bf16": {"enabled": true}})",
           "--bf16 --zero-stage 0 --global-batch-size 2048 --rampup-batch-size 192 16 9_765_625"));
  EXPECT_EQ(config.zero_stage, 1);
}

TEST_F(DeepSpeedConfigTest, ContradictionsNameBoth) {
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"stage": 2}})", "--zero-stage 1"),
            ": zero_optimization.stage is 2, but --zero-stage 1 is given; they must agree");
  EXPECT_EQ(ErrorOf(R"({"train_batch_size": 16})", "--global-batch-size 8"),
            ": train_batch_size is 16, but --global-batch-size 8 is given; they must agree");
  EXPECT_EQ(ErrorOf(R"({"fp16": {"enabled": false}})", "--fp16"),
            ": fp16.enabled is false, but --fp16 is given; they must agree");
}

TEST_F(DeepSpeedConfigTest, ReadingIsStrict) {
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"stages": 2}})"),
            ": unknown key 'zero_optimization.stages'; did you mean 'zero_optimization.stage'?");
  EXPECT_EQ(ErrorOf(R"({"gradient_clippping": 1})"),
            ": unknown key 'gradient_clippping'; did you mean 'gradient_clipping'?");
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"stage": "two"}})"),
            ": zero_optimization.stage is \"two\", which is not a valid value of --zero-stage");
  EXPECT_EQ(ErrorOf(R"({"train_batch_size": 1.5})"),
            ": train_batch_size is 1.5, which is not a valid value of --global-batch-size");
  EXPECT_EQ(ErrorOf(R"({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/x"}}})"),
            ": zero_optimization.offload_param.device is nvme; only none and cpu are supported");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "OneBitAdam"}})"),
            ": optimizer.type is \"OneBitAdam\"; only Adam, AdamW and SGD are supported");
  EXPECT_EQ(ErrorOf(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})"),
            ": optimizer.params.adam_w_mode is false; only true is supported");
  EXPECT_NE(ErrorOf("{").find(path_), ErrorOf("{").npos + 1);
}

TEST_F(DeepSpeedConfigTest, RefusesUnsupportedSectionsUnlessTheyAreOff) {
  EXPECT_EQ(ErrorOf(R"({"curriculum_learning": {"enabled": true, "min_difficulty": 8}})"),
            ": curriculum_learning is not supported");
  EXPECT_EQ(ErrorOf(R"({"curriculum_learning": {"enabled": false, "min_difficulty": 8}, "aio": {"x": 1}})"),
            "");
  EXPECT_EQ(ErrorOf(R"({"compression_training": {"a": {"shared_parameters": {"enabled": true}}}})"),
            ": compression_training is not supported");
}

TEST_F(DeepSpeedConfigTest, AcceptsTheFileAsAFlagsValue) {
  With(R"({"train_batch_size": 16})");
  EXPECT_EQ(ConfigOf("--deepspeed " + path_).global_batch_size, 16);
  EXPECT_EQ(ParseWords("--deepspeed /nowhere/ds.json").status().kind(), StatusKind::kNotFound);
}

}  // namespace
}  // namespace cairn
