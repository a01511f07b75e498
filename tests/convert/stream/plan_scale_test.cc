// Planning at the size of the largest models: metadata only.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ckpt/model/catalog.h"
#include "convert/stream/step_plan.h"
#include "tests/support/sanitized.h"

namespace cairn {
namespace {

// Layers of a GPT, or of a mixture of experts if `experts` is more than 0, with Adam's states.
std::vector<TensorEntry> Tensors(int layers, uint64_t h, int experts) {
  std::vector<TensorEntry> tensors;
  int layer = kBeforeLayers;
  const auto add = [&](const std::string& name, Dims shape, std::vector<Cut> cuts) {
    const ParameterSpec spec{.name = layer < 0 ? name : fmt::format("layers.{}.{}", layer, name),
                             .shape = shape,
                             .cuts = std::move(cuts),
                             .layer = layer};
    tensors.push_back({spec, Role::kWeight, Dtype::kBF16});
    for (Role role : {Role::kMaster, Role::kExpAvg, Role::kExpAvgSq})
      tensors.push_back({spec, role, Dtype::kF32});
  };
  add("embedding.word.weight", {250880, h}, {{.dim = 0}});
  for (layer = 0; layer < layers; ++layer) {
    for (const char* part : {"query", "key", "value"})
      add(fmt::format("{}.weight", part), {h, h}, {{.dim = 0}});
    add("attention.output.weight", {h, h}, {{.dim = 1}});
    for (int e = 0; e < std::max(1, experts); ++e) {
      add(fmt::format("expert.{}.up.weight", e), {4 * h, h}, {{.dim = 0}});
      add(fmt::format("expert.{}.down.weight", e), {h, 4 * h}, {{.dim = 1}});
    }
    for (const char* norm : {"input_norm.weight", "input_norm.bias"}) add(norm, {h}, {});
  }
  return tensors;
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

// The most bytes that planning one stage took, divided by its ranks. Every element is planned once, and
// a stage makes shards for its own ranks with pieces of its own tensors: a rank's work is proportional to its
// share.
double BytesOfARank(const std::vector<TensorEntry>& tensors, const Topology& topology) {
  const uint64_t before = ResidentBytes();
  const auto plan = StepPlan::Make(tensors, nlohmann::json::object(), topology);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  uint64_t most = 0, covered = 0, pieces = 0;
  for (int stage = 0; stage < topology.pp; ++stage) {
    const std::vector<PlannedShard> shards = plan->Stage(stage);
    most = std::max(most, ResidentBytes() - std::min(before, ResidentBytes()));
    EXPECT_EQ(shards.size(), static_cast<size_t>(topology.tp * topology.dp));
    for (const PlannedShard& shard : shards) {
      pieces += shard.pieces.size();
      for (const Piece& piece : shard.pieces) covered += piece.range.size();
    }
  }
  uint64_t elements = 0;
  for (const TensorEntry& tensor : tensors) elements += tensor.spec.shape.Volume();
  EXPECT_EQ(covered, elements);
  // A tensor is cut at most by every tensor parallel rank and where a data parallel rank's share ends.
  EXPECT_LE(pieces, 2 * tensors.size() * topology.tp + tensors.size() + 8 * topology.world());
  return static_cast<double>(most) / (topology.tp * topology.dp);
}

TEST(PlanScaleTest, PlansAHundredThousandTensorsWithFewPieces) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's memory is not the plan's";
  const auto moe = Tensors(96, 8192, 130);  // 1.1 T parameters
  ASSERT_GT(moe.size(), 100000u);
  for (const Topology& topology :
       {Topology{.tp = 8, .pp = 8, .dp = 12}, Topology{.tp = 8, .pp = 8, .dp = 8}}) {
    const double bytes = BytesOfARank(moe, topology);
    RecordProperty("bytes_a_rank", std::to_string(bytes));
    EXPECT_LT(bytes, 64 << 20);
  }
  EXPECT_LT(BytesOfARank(Tensors(70, 14336, 0), {.tp = 8, .pp = 7, .dp = 12}), 64 << 20);  // 176 B
}

}  // namespace
}  // namespace cairn
