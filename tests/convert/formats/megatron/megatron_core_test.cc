// The values written for Megatron-Core besides tensors, against the real programs: every argument is
// one of Megatron-LM's own (megatron_namespaces.json) and has the same type.
#include "convert/formats/megatron/megatron_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/make_step.h"
#include "tests/support/megatron_namespaces.h"

namespace cairn {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json WrittenArguments(const Topology& topology, const std::vector<int>& layers) {
  const TinyGpt model{.layers = 6};
  Manifest manifest;
  manifest.model = ModelJson(model);
  TrainingTensors tensors;
  for (const ParameterSpec& spec : SpecsOf(model)) {
    tensors.parameters.emplace_back();
    tensors.parameters.back().spec = spec;
  }
  const MegatronShape shape = MegatronShapeOf(manifest.model, tensors).value();
  TrainingState state;
  state.iteration = 100;
  state.consumed_samples = 800;
  return CoreArguments(manifest, shape, topology, layers, state);
}

TEST(MegatronCoreTest, ArgumentsHaveMegatronsNamesAndTypes) {
  const json real = MegatronNamespace("megatron_lm", "gpt");
  const json written = WrittenArguments({.tp = 2, .pp = 2}, {3, 3});
  std::vector<std::string> others;
  for (const auto& [name, value] : written.items()) {
    if (!real.contains(name)) others.push_back(name);
    if (!real.contains(name) || real[name].is_null() || value.is_null()) continue;
    EXPECT_EQ(real[name].is_number(), value.is_number()) << name;
    EXPECT_EQ(real[name].is_boolean(), value.is_boolean()) << name;
    EXPECT_EQ(real[name].is_string(), value.is_string()) << name;
  }
  // From Megatron-LM's training and its other versions, of TransformerConfig, and our own.
  EXPECT_THAT(others, ElementsAre("apply_layernorm_1p", "cairn_architecture", "iteration", "norm_epsilon",
                                  "num_key_value_heads", "softmax_scale"));
  EXPECT_EQ(written["tensor_model_parallel_size"], 2);
  EXPECT_EQ(written["consumed_train_samples"], 800);
  EXPECT_EQ(written["padded_vocab_size"], 64);  // 50, to a multiple of 8 * TP
}

TEST(MegatronCoreTest, RecordsUnevenStages) {
  EXPECT_FALSE(WrittenArguments({.pp = 2}, {3, 3}).contains("decoder_first_pipeline_num_layers"));
  const json uneven = WrittenArguments({.pp = 3}, {1, 3, 2});
  EXPECT_EQ(uneven["decoder_first_pipeline_num_layers"], 1);
  EXPECT_EQ(uneven["decoder_last_pipeline_num_layers"], 2);
  const json virtual_stages = WrittenArguments({.pp = 2, .virtual_stages = 3}, {1, 1, 1, 1, 1, 1});
  EXPECT_EQ(virtual_stages["virtual_pipeline_model_parallel_size"], 3);
}

// opt_param_scheduler of Megatron-LM: all of its keys, or its loader fails.
TEST(MegatronCoreTest, TheScheduleHasAllOfMegatronsKeys) {
  TrainingState state;
  state.consumed_samples = 800;
  state.scheduled_samples = 784;
  std::vector<std::string> keys;
  const json constant = CoreSchedule(state);
  for (const auto& [key, value] : constant.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("end_wd", "lr_decay_steps", "lr_decay_style", "lr_warmup_steps", "max_lr",
                                "min_lr", "num_steps", "start_wd", "wd_incr_steps", "wd_incr_style"));
  EXPECT_EQ(constant["num_steps"], 784);
  EXPECT_EQ(constant["lr_decay_style"], "constant");
  state.schedule = {{"num_steps", 5}, {"max_lr", 0.25}};
  EXPECT_EQ(CoreSchedule(state), state.schedule);
}

}  // namespace
}  // namespace cairn
