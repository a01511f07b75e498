// The progress of a training, from the top level of model_optim_rng.pt (Megatron-LM,
// training/checkpointing.py) and mp_rank_XX_model_states.pt (DeepSpeed 0.19, runtime/engine.py).
#include "convert/formats/megatron_model/megatron_state.h"

#include <gtest/gtest.h>

#include "tests/support/pickled_json.h"

namespace cairn {
namespace {

using nlohmann::json;

json StateOf(const json& root) { return MegatronState(*PickledJson(root)->root); }

TEST(MegatronStateTest, ReadsMegatronsCountersFromItsArguments) {
  const json root = {
      {"iteration", 1000},
      {"args", {{"consumed_train_samples", 16000}, {"lr", 0.1}}},
      {"opt_param_scheduler",
       {{"max_lr", 0.5}, {"num_steps", 16000}, {"lr_decay_style", "cosine"}, {"skip", nullptr}}},
      {"optimizer",
       {{"optimizer",
         {{"param_groups",
           {{{"lr", 0.25}, {"step", 990}, {"params", {0, 1}}},
            {{"lr", 0.25}, {"step", 990}, {"params", {2}}}}}}}}}};
  EXPECT_EQ(StateOf(root),
            json({{"iteration", 1000},
                  {"consumed_samples", 16000},
                  {"lr_schedule.max_lr", 0.5},
                  {"lr_schedule.num_steps", 16000},
                  {"lr_schedule.lr_decay_style", "cosine"},
                  {"optimizer_step", 990},
                  {"param_groups", {{{"lr", 0.25}, {"step", 990}}, {{"lr", 0.25}, {"step", 990}}}}}));
}

TEST(MegatronStateTest, ReadsDeepSpeedsCountersAtTheTopLevel) {
  const json root = {{"global_steps", 7},
                     {"global_samples", 56},
                     {"skipped_steps", 2},
                     {"tokens", 7168},
                     {"lr_scheduler", {{"num_iters", 7}, {"decay_style", "linear"}}},
                     {"shared_params", {{"head.weight", "embed.weight"}}},
                     {"ds_config",
                      {{"bf16", {{"enabled", true}}},
                       {"fp16", {{"enabled", false}}},
                       {"zero_optimization", {{"stage", 2}, {"round_robin_gradients", true}}}}}};
  EXPECT_EQ(StateOf(root), json({{"iteration", 7},
                                 {"consumed_samples", 56},
                                 {"skipped_steps", 2},
                                 {"consumed_tokens", 7168},
                                 {"lr_schedule.num_iters", 7},
                                 {"lr_schedule.decay_style", "linear"},
                                 {"shared_params", {{"head.weight", "embed.weight"}}},
                                 {"params_dtype", "bf16"},
                                 {"round_robin_gradients", true}}));
}

// Megatron-DeepSpeed's client state is merged into DeepSpeed's.
TEST(MegatronStateTest, PrefersMegatronsCounters) {
  const json state = StateOf({{"global_steps", 9},
                              {"iteration", 10},
                              {"global_samples", 1},
                              {"args", {{"consumed_train_samples", 80}}}});
  EXPECT_EQ(state["iteration"], 10);
  EXPECT_EQ(state["consumed_samples"], 80);
  EXPECT_EQ(StateOf({{"total_iters", 12}})["iteration"], 12);  // of Megatron-LM v1
}

TEST(MegatronStateTest, ReportsUnreadEntriesByName) {
  const json root = {{"iteration", 3},
                     {"model", json::object()},
                     {"tokens_so_far", 5},
                     {"lr_scheduler", nullptr},
                     {"rerun_state_machine", nullptr},
                     {"optimizer", {{"0", json::object()}, {"grad_scaler", json::object()}}}};
  Account account;
  LeaveWhatIsNotRead(*PickledJson(root)->root, {"model"}, "common.pt.", account);
  const auto closed = account.Close({});
  ASSERT_TRUE(closed.ok()) << closed.status().message();
  EXPECT_EQ((*closed)["left_behind"], json({"common.pt.optimizer.0", "common.pt.tokens_so_far"}));
}

TEST(MegatronStateTest, AnExtraStateIsEmptyWithoutBytes) {
  for (const json& empty : {json(), json({nullptr}), json({json::array({""}), 7})})
    EXPECT_TRUE(IsEmptyState(*PickledJson(empty)->root)) << empty;
  for (const json& full : {json("scale"), json({nullptr, json::array({"", "x"})})})
    EXPECT_FALSE(IsEmptyState(*PickledJson(full)->root)) << full;
}

TEST(MegatronStateTest, ValuesOfOtherTypesAreLeftOut) {
  EXPECT_EQ(StateOf(json::object()), json::object());
  EXPECT_EQ(StateOf({{"iteration", "ten"},
                     {"args", nullptr},
                     {"opt_param_scheduler", {1, 2}},
                     {"ds_config", 3},
                     {"shared_params", {{"a", 1}}},
                     {"optimizer", {{"param_groups", 5}}}}),
            json::object());
}

}  // namespace
}  // namespace cairn
