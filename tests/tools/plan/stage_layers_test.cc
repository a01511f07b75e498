// The effect of fewer layers at the ends of a pipeline on time and memory, and the splits that programs
// accept.
#include "tools/plan/stage_layers.h"

#include <gtest/gtest.h>

#include "tools/plan/memory_model.h"
#include "tools/plan/sbatch.h"
#include "tools/plan/time_model.h"

namespace cairn {
namespace {

// The head takes as long as a few layers.
const ModelShape kShape{.layers = 46, .hidden = 4096, .heads = 32, .vocab = 1'000'000};

RunSetup OnEight(int64_t first, int64_t last, Program program = Program::kMegatronLm) {
  RunSetup setup{.gpus = 64, .tp = 8, .pp = 8, .global_batch = 64, .program = program};
  setup.first_layers = first;
  setup.last_layers = last;
  return setup;
}

template <typename Constants>
Constants BelievedOf(std::span<const ConstantInfo<Constants>> infos) {
  Constants constants{};
  for (const auto& info : infos) constants.*info.field = info.mean;
  return constants;
}

TEST(StageLayersTest, ProgramsAcceptTheseSplits) {
  const auto all = UnevenEnds(kShape, OnEight(0, 0));
  EXPECT_EQ(std::count(all.begin(), all.end(), StageEnds{5, 5}), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), StageEnds{6, 4}), 1);
  for (const StageEnds& ends : all) {
    EXPECT_TRUE(StagesAreWhole(kShape, OnEight(ends.first, ends.last)));
    EXPECT_EQ((46 - ends.first - ends.last) % 6, 0);
  }
  EXPECT_EQ(UnevenEnds(kShape, OnEight(0, 0, Program::kMegatronDeepSpeed)), (std::vector<StageEnds>{{5, 5}}));
  EXPECT_TRUE(UnevenEnds(kShape, OnEight(0, 0, Program::kCairn)).empty());
  EXPECT_FALSE(StagesAreWhole(kShape, OnEight(0, 0)));
  EXPECT_FALSE(StagesAreWhole(kShape, OnEight(5, 6)));
  EXPECT_TRUE(StagesAreWhole(kShape, OnEight(0, 0, Program::kCairn)));
}

TEST(StageLayersTest, FlagsDescribeTheSplit) {
  const auto says = [](const RunSetup& setup, const std::string& flag) {
    const auto flags = LaunchFlags(kShape, setup);
    return std::count(flags.begin(), flags.end(), flag) == 1;
  };
  EXPECT_TRUE(says(OnEight(5, 5), "--account-for-embedding-in-pipeline-split"));
  EXPECT_TRUE(says(OnEight(6, 4), "--decoder-first-pipeline-num-layers 6"));
  EXPECT_TRUE(says(OnEight(6, 4), "--decoder-last-pipeline-num-layers 4"));
  EXPECT_TRUE(
      says(OnEight(5, 5, Program::kMegatronDeepSpeed), "--pp-partition-method 'type:transformer|embedding'"));
}

TEST(StageLayersTest, TheSlowestStageSetsTheTime) {
  const Cluster cluster = *FindCluster("h100");
  const auto constants = BelievedOf(TimeConstantInfos());
  const auto of = [&](int64_t first, int64_t last) {
    return TimeOf(kShape, OnEight(first, last), cluster, constants);
  };
  ModelShape more = kShape;
  more.layers = 48;
  const IterationTime even = TimeOf(more, OnEight(0, 0), cluster, constants);
  EXPECT_NEAR(even.slowest_stage - of(5, 5).slowest_stage, even.layer.Total(), 1e-12);
  EXPECT_NEAR(of(5, 5).slowest_stage - of(6, 4).slowest_stage, even.layer.Total(), 1e-12);
  EXPECT_EQ(of(5, 5).hand_over, even.hand_over);
  EXPECT_LT(of(6, 4).Total(), of(4, 6).Total());
}

TEST(StageLayersTest, MemoryIsComputedForEachStage) {
  const auto constants = BelievedOf(MemoryConstantInfos());
  const PipelineMemory memory = MemoryOf(kShape, OnEight(6, 4), constants);
  EXPECT_NEAR(memory.first.in_flight / memory.middle.in_flight, 8.0 / 7, 1e-12);
  EXPECT_NEAR(memory.last.in_flight / memory.middle.in_flight, 4.0 / 6 / 7, 1e-12);
  const double layer = kShape.LayerParams() / 8 * 2 / 1e9;  // of its 16-bit weights
  EXPECT_NEAR(memory.first.parameters - memory.last.parameters, 2 * layer, 1e-9);
  EXPECT_NEAR(memory.middle.parameters, 6 * layer, 1e-9);
}

TEST(StageLayersTest, CairnTrainGivesTheRestToTheFirstStages) {
  const auto of = [](int64_t layers) {
    return PlannedStages({.layers = layers, .hidden = 64, .heads = 4}, OnEight(0, 0, Program::kCairn));
  };
  EXPECT_EQ(of(17).first, 3);
  EXPECT_EQ(of(17).middle, 2);
  EXPECT_EQ(of(17).last, 2);
  EXPECT_EQ(of(18).middle, 3);
  EXPECT_EQ(of(16).first, 2);
}

}  // namespace
}  // namespace cairn
