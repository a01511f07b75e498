#include "runtime/config/stage_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TrainConfig Pipeline(int layers, int pp, const std::string& method) {
  TrainConfig config;
  config.num_layers = layers;
  config.pipeline_model_parallel_size = pp;
  config.pp_partition_method = method;
  config.vocab_size = 50000;
  return config;
}

// As DeepSpeed 0.19.8's partition_balanced and partition_uniform give them.
TEST(StageLayersTest, SupportsDeepSpeedsMethods) {
  EXPECT_THAT(*StageLayersOf(Pipeline(70, 12, "type:transformer|embedding")),
              ElementsAre(5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5));
  EXPECT_THAT(*StageLayersOf(Pipeline(8, 4, "type:transformer")), IsEmpty());  // even
  EXPECT_THAT(*StageLayersOf(Pipeline(12, 3, "uniform")), ElementsAre(3, 6, 3));
  EXPECT_THAT(*StageLayersOf(Pipeline(8, 2, "")), IsEmpty());
  EXPECT_THAT(StageLayersOf(Pipeline(8, 2, "profile")).status().message(), HasSubstr("it must be uniform"));
  EXPECT_THAT(StageLayersOf(Pipeline(8, 2, "type:(")).status().message(),
              HasSubstr("not a regular expression"));
}

TEST(StageLayersTest, AListMustFit) {
  TrainConfig config = Pipeline(6, 2, "");
  config.layers_per_stage = {4, 2};
  EXPECT_THAT(*StageLayersOf(config), ElementsAre(4, 2));
  config.layers_per_stage = {3, 3};
  EXPECT_THAT(*StageLayersOf(config), IsEmpty());
  config.layers_per_stage = {4, 1};
  EXPECT_THAT(StageLayersOf(config).status().message(), HasSubstr("they add up to 5, but the model has 6"));
  config.layers_per_stage = {6, 0};
  EXPECT_THAT(StageLayersOf(config).status().message(), HasSubstr("each stage needs at least one"));
  config.layers_per_stage = {2, 2, 2};
  EXPECT_THAT(StageLayersOf(config).status().message(), HasSubstr("3 numbers for 2 pipeline stages"));
}

}  // namespace
}  // namespace cairn
