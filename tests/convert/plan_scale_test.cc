// Planning at the size of the largest models: metadata only.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "ckpt/catalog.h"
#include "convert/target_plan.h"
#include "tests/support/sanitized.h"

namespace cairn {
namespace {

// Layers of a GPT, or of a mixture of experts where `experts` is more than 0, with Adam's states.
std::vector<TensorEntry> Tensors(int layers, uint64_t h, int experts) {
  std::vector<TensorEntry> tensors;
  int layer = kBeforeLayers;
  const auto add = [&](const std::string& name, Dims shape, int tp_dim) {
    const ParameterSpec spec{.name = layer < 0 ? name : fmt::format("layers.{}.{}", layer, name),
                             .shape = shape,
                             .tp_dim = tp_dim,
                             .layer = layer};
    tensors.push_back({spec, Role::kWeight, Dtype::kBF16});
    for (Role role : {Role::kMaster, Role::kExpAvg, Role::kExpAvgSq})
      tensors.push_back({spec, role, Dtype::kF32});
  };
  add("embedding.word.weight", {250880, h}, 0);
  for (layer = 0; layer < layers; ++layer) {
    for (const char* part : {"query", "key", "value"}) add(fmt::format("{}.weight", part), {h, h}, 0);
    add("attention.output.weight", {h, h}, 1);
    for (int e = 0; e < std::max(1, experts); ++e) {
      add(fmt::format("expert.{}.up.weight", e), {4 * h, h}, 0);
      add(fmt::format("expert.{}.down.weight", e), {h, 4 * h}, 1);
    }
    for (const char* norm : {"input_norm.weight", "input_norm.bias"}) add(norm, {h}, kReplicated);
  }
  return tensors;
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

struct Cost {
  double seconds = 0;
  double bytes = 0;
};

// Of planning every shard of all stages, divided by the ranks.
Cost CostOfARank(const std::vector<TensorEntry>& tensors, const Topology& topology) {
  const uint64_t before = ResidentBytes();
  const auto start = std::chrono::steady_clock::now();
  const auto plan = TargetPlan::Make(tensors, nlohmann::json::object(), topology);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  uint64_t most = 0, covered = 0;
  for (int stage = 0; stage < topology.pp; ++stage) {
    const std::vector<PlannedShard> shards = plan->Stage(stage);
    most = std::max(most, ResidentBytes() - std::min(before, ResidentBytes()));
    for (const PlannedShard& shard : shards)
      for (const Piece& piece : shard.pieces) covered += piece.range.size();
  }
  uint64_t elements = 0;
  for (const TensorEntry& tensor : tensors) elements += tensor.spec.shape.Volume();
  EXPECT_EQ(covered, elements);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {seconds.count() / topology.world(), static_cast<double>(most) / (topology.tp * topology.dp)};
}

TEST(PlanScaleTest, AHundredThousandTensorsArePlannedInASecondAndLittleMemoryARank) {
  if (kSanitized) GTEST_SKIP() << "times mean nothing here";
  const auto moe = Tensors(96, 8192, 130);  // 1.1 T parameters
  ASSERT_GT(moe.size(), 100000u);
  for (const Topology& topology :
       {Topology{.tp = 8, .pp = 8, .dp = 12}, Topology{.tp = 8, .pp = 8, .dp = 8}}) {
    const Cost cost = CostOfARank(moe, topology);
    RecordProperty("seconds_a_rank", std::to_string(cost.seconds));
    RecordProperty("bytes_a_rank", std::to_string(cost.bytes));
    EXPECT_LT(cost.seconds, 1);
    EXPECT_LT(cost.bytes, 64 << 20);
  }
  EXPECT_LT(CostOfARank(Tensors(70, 14336, 0), {.tp = 8, .pp = 7, .dp = 12}).seconds, 1);  // 176 B
}

}  // namespace
}  // namespace cairn
