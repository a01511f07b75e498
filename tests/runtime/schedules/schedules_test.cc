#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/control/train_state.h"
#include "runtime/schedules/batch_schedule.h"
#include "runtime/schedules/grad_scaler.h"
#include "runtime/schedules/lr_schedule.h"

namespace cairn {
namespace {

TrainConfig Base() {
  TrainConfig config;
  config.global_batch_size = 10;
  config.train_iters = 100;
  config.lr = 1.0;
  config.min_lr = 0.1;
  return config;
}

TEST(LrScheduleTest, WarmsUpThenDecaysToTheMinimum) {
  TrainConfig config = Base();
  config.lr_warmup_iters = 10;
  config.lr_decay_style = "cosine";
  const LrSchedule schedule(config, 1000);
  EXPECT_DOUBLE_EQ(schedule.At(10), 0.1);
  EXPECT_DOUBLE_EQ(schedule.At(100), 1.0);
  EXPECT_NEAR(schedule.At(550), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(schedule.At(1000), 0.1);
  EXPECT_DOUBLE_EQ(schedule.At(2000), 0.1);
}

// DeepSpeed's WarmupLR: over 10 steps from 0.2 to 1, step k at log(k + 1) / log(10).
TEST(LrScheduleTest, LogarithmicWarmupMatchesDeepSpeed) {
  TrainConfig config = Base();
  config.lr_warmup_iters = 10;
  config.lr_warmup_init = 0.2;
  EXPECT_DOUBLE_EQ(LrSchedule(config, 1000).At(50), 0.6);
  config.lr_warmup_style = "log";
  const LrSchedule schedule(config, 1000);
  EXPECT_DOUBLE_EQ(schedule.At(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule.At(10), 0.2 + 0.8 * std::log(2.0) / std::log(10.0));
  EXPECT_DOUBLE_EQ(schedule.At(90), 1.0);
  EXPECT_DOUBLE_EQ(schedule.At(100), 1.0);
}

TEST(LrScheduleTest, LinearDecayIsAStraightLine) {
  const LrSchedule schedule(Base(), 1000);
  EXPECT_DOUBLE_EQ(schedule.At(500), 0.55);
}

TEST(LrScheduleTest, ConstantStaysAfterTheDecaysEnd) {
  TrainConfig config = Base();
  config.lr_decay_style = "constant";
  EXPECT_DOUBLE_EQ(LrSchedule(config, 1000).At(5000), 1.0);
}

// The keys of OptimizerParamScheduler.state_dict() except num_steps; it compares the values with its flags.
TEST(LrScheduleTest, FactsHaveTheKeysOfMegatronsScheduler) {
  TrainConfig config = Base();
  config.lr_warmup_fraction = 0.0005;
  config.lr_decay_iters = 50;
  config.weight_decay = 0.25;
  EXPECT_EQ(LrSchedule(config, 1000).Facts(),
            nlohmann::json::parse(R"({"max_lr": 1.0, "min_lr": 0.1, "lr_warmup_steps": 0.25,
                                      "lr_decay_steps": 500, "lr_decay_style": "linear", "start_wd": 0.25,
                                      "end_wd": 0.25, "wd_incr_style": "constant", "wd_incr_steps": 1000})"));
}

TEST(BatchScheduleTest, RampsUpInEqualSteps) {
  TrainConfig config = Base();
  config.rampup_batch_size = {2, 4, 100};
  const BatchSchedule schedule(config);
  EXPECT_EQ(schedule.BatchAt(0), 2);
  EXPECT_EQ(schedule.BatchAt(49), 2);
  EXPECT_EQ(schedule.BatchAt(50), 6);
  EXPECT_EQ(schedule.BatchAt(100), 10);
}

TEST(BatchScheduleTest, SamplesAndIterationsAgree) {
  TrainConfig config = Base();
  config.rampup_batch_size = {2, 4, 100};
  const BatchSchedule by_iterations(config);
  EXPECT_EQ(by_iterations.total_iterations(), 100);
  config.train_samples = by_iterations.total_samples();
  config.train_iters = 0;
  EXPECT_EQ(BatchSchedule(config).total_iterations(), 100);
  config.train_samples -= 1;
  EXPECT_EQ(BatchSchedule(config).total_iterations(), 99);
}

TEST(BatchScheduleTest, TrainingMayEndWithinTheRamp) {
  TrainConfig config = Base();
  config.rampup_batch_size = {2, 4, 100};
  config.train_iters = 3;
  EXPECT_EQ(BatchSchedule(config).total_samples(), 6);
}

TEST(GradScalerTest, HalvesAfterHysteresisAndDoublesAfterTheWindow) {
  TrainConfig config = Base();
  config.fp16 = true;
  config.initial_loss_scale = 1024;
  config.loss_scale_window = 3;
  TrainState state;
  const GradScaler scaler(config);
  scaler.Start(state);
  scaler.Update(true, state);
  EXPECT_EQ(state.loss_scale, 1024);
  scaler.Update(true, state);
  EXPECT_EQ(state.loss_scale, 512);
  for (int i = 0; i < 3; ++i) scaler.Update(false, state);
  EXPECT_EQ(state.loss_scale, 1024);
  EXPECT_EQ(state.loss_scale_hysteresis, 2);
}

TEST(GradScalerTest, ScaleIsOneWithoutFp16) {
  TrainState state;
  const GradScaler scaler(Base());
  scaler.Start(state);
  scaler.Update(true, state);
  EXPECT_EQ(state.loss_scale, 1);
}

TEST(GradScalerTest, AFixedScaleStaysAndExplainsNoOverflow) {
  TrainConfig config = Base();
  config.fp16 = true;
  config.loss_scale = 12;
  TrainState state;
  const GradScaler scaler(config);
  scaler.Start(state);
  EXPECT_EQ(state.loss_scale, 12);
  for (int i = 0; i < 5; ++i) scaler.Update(/*overflow=*/true, state);
  for (int i = 0; i < config.loss_scale_window; ++i) scaler.Update(/*overflow=*/false, state);
  EXPECT_EQ(state.loss_scale, 12);
  EXPECT_FALSE(scaler.Explains(state));
}

TEST(GradScalerTest, ResumeKeepsTheScaleOnlyBetweenFp16Runs) {
  TrainConfig fp16 = Base();
  fp16.fp16 = true;
  TrainState saved{.loss_scale = 512, .loss_scale_hysteresis = 1};
  GradScaler(fp16).Resume(saved);
  EXPECT_EQ(saved.loss_scale, 512);
  GradScaler(Base()).Resume(saved);
  EXPECT_EQ(saved.loss_scale, 1);
  GradScaler(fp16).Resume(saved);
  EXPECT_EQ(saved.loss_scale, fp16.initial_loss_scale);
}

TEST(GradScalerTest, AnOverflowIsExplainedWhileTheScaleCanFall) {
  TrainConfig config = Base();
  TrainState state;
  EXPECT_FALSE(GradScaler(config).Explains(state));
  config.fp16 = true;
  config.min_loss_scale = 4;
  const GradScaler scaler(config);
  scaler.Start(state);
  EXPECT_TRUE(scaler.Explains(state));
  state.loss_scale = 4;
  EXPECT_FALSE(scaler.Explains(state));
}

TEST(TrainStateTest, JsonRoundTrip) {
  TrainState state{.iteration = 3,
                   .consumed_samples = 24,
                   .consumed_tokens = 768,
                   .optimizer_steps = 2,
                   .skipped_iterations = 1,
                   .seed = -5,
                   .loss_scale = 65536,
                   .health = {.loss = 2.5, .bad_iterations = 2, .first_bad_iteration = 2, .accused = "a"}};
  state.epoch = 2;
  state.validation = {.iteration = 3, .loss = 2.5};
  auto back = TrainState::FromJson(state.ToJson());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, state);
}

TEST(TrainStateTest, StepsWithoutHealthAreAccepted) {
  nlohmann::json json = TrainState{.iteration = 3}.ToJson();
  json.erase("health");
  EXPECT_EQ(*TrainState::FromJson(json), TrainState{.iteration = 3});
}

// Cairn's older steps followed the samples consumed; Megatron's schedule records its own.
TEST(TrainStateTest, FindsTheScheduleInOtherSteps) {
  nlohmann::json json = TrainState{.consumed_samples = 24, .scheduled_samples = 16}.ToJson();
  EXPECT_EQ(TrainState::FromJson(json)->scheduled_samples, 16);
  json.erase("scheduled_samples");
  EXPECT_EQ(TrainState::FromJson(json)->scheduled_samples, 24);
  json["lr_schedule.num_steps"] = 20;
  EXPECT_EQ(TrainState::FromJson(json)->scheduled_samples, 20);
}

TEST(TrainStateTest, MissingValuesOfOtherProgramsGetDefaults) {
  std::vector<std::string> missing;
  const auto state = TrainState::FromOtherProgram(
      {{"iteration", 9}, {"consumed_samples", 72}, {"skipped_steps", 2}, {"optimizer_step", 7.0}}, missing);
  ASSERT_TRUE(state.ok()) << state.status().message();
  EXPECT_EQ(*state, (TrainState{.iteration = 9,
                                .consumed_samples = 72,
                                .optimizer_steps = 7,
                                .scheduled_samples = 72,
                                .skipped_iterations = 2,
                                .seed = kUnknownSeed}));
  EXPECT_EQ(missing, (std::vector<std::string>{"consumed_tokens", "loss_scale", "loss_scale_good_steps",
                                               "loss_scale_hysteresis", "nan_iterations", "seed"}));
  EXPECT_EQ(TrainState::FromOtherProgram({{"iteration", 9}, {"skipped_steps", 2}}, missing)->optimizer_steps,
            7);
  EXPECT_EQ(TrainState::FromOtherProgram({{"iteration", "x"}}, missing).status().kind(),
            StatusKind::kCorrupt);
}

TEST(TrainStateTest, MissingOrNegativeKeyIsCorrupt) {
  nlohmann::json json = TrainState{}.ToJson();
  json["iteration"] = -1;
  EXPECT_EQ(TrainState::FromJson(json).status().kind(), StatusKind::kCorrupt);
  json.erase("iteration");
  EXPECT_EQ(TrainState::FromJson(json).status().message(),
            "training state: 'iteration' is missing or not a valid number");
}

}  // namespace
}  // namespace cairn
