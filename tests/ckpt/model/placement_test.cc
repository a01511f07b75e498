#include "ckpt/model/placement.h"

#include <gtest/gtest.h>

#include <random>

#include "ckpt/model/catalog.h"

namespace cairn {
namespace {

ParameterSpec Spec(std::string name, Dims shape, std::vector<Cut> cuts, int layer) {
  return {.name = std::move(name), .shape = shape, .cuts = std::move(cuts), .layer = layer};
}

std::vector<ParameterSpec> GptOf(int layers, uint64_t hidden, uint64_t vocabulary, uint64_t head) {
  std::vector<ParameterSpec> specs{Spec("embedding", {vocabulary, hidden}, {{.pad = 8}}, kBeforeLayers)};
  specs[0].tied_to_last = true;
  for (int i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    specs.push_back(Spec(layer + "norm", {hidden}, {}, i));
    specs.push_back(Spec(layer + "query", {hidden, hidden}, {{.dim = 0, .unit = head}}, i));
    specs.push_back(Spec(layer + "output", {hidden, hidden}, {{.dim = 1, .unit = head}}, i));
  }
  specs.push_back(Spec("final_norm", {hidden}, {}, kAfterLayers));
  return specs;
}

// The catalog of the pieces that all ranks write.
Result<Catalog> WrittenShards(const std::vector<ParameterSpec>& specs, const Topology& topology) {
  Catalog catalog;
  for (const ParameterSpec& spec : specs) catalog.tensors.push_back({spec, Role::kWeight, Dtype::kF32});
  for (int rank = 0; rank < topology.world(); ++rank) {
    CAIRN_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(specs, topology, rank));
    catalog.files.push_back(fmt::format("shard-{}", rank));
    for (const PlacedPiece& placed : PiecesOf(layout, topology, rank)) {
      Piece piece{.tensor = placed.index,
                  .file = static_cast<uint32_t>(rank),
                  .box = placed.box,
                  .range = placed.range,
                  .chunks = {}};
      piece.stored_bytes = placed.range.size() * 4;
      catalog.pieces.push_back(piece);
    }
  }
  catalog.SortPieces();
  return catalog;
}

TEST(PlacementTest, AllRanksTogetherWriteEveryElementExactlyOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int tp = 1 << (random() % 3), layers = 1 + random() % 5;
    const uint64_t head = 1 + random() % 3, hidden = head * tp * (1 + random() % 3);
    const Topology topology{tp, 1 + static_cast<int>(random() % layers), 1 + static_cast<int>(random() % 5),
                            1};
    const auto catalog = WrittenShards(GptOf(layers, hidden, 1 + random() % 40, head), topology);
    ASSERT_TRUE(catalog.ok()) << catalog.status().message();
    const Status covered = CheckCoverage(*catalog);
    EXPECT_TRUE(covered.ok()) << ToString(topology) << ": " << covered.message();
  }
}

// A layer's experts with dense parameters, under topologies that cut the experts differently.
TEST(PlacementTest, ExpertsHaveTheirOwnReplicasAndWriters) {
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    const int tp = 1 << random() % 3, etp = 1 << random() % 2, ep = 1 << random() % 3;
    const int dp = std::max(1, etp * ep / tp) * static_cast<int>(1 + random() % 3);
    const Topology topology{
        .tp = tp, .pp = static_cast<int>(1 + random() % 2), .dp = dp, .ep = ep, .etp = etp};
    std::vector<ParameterSpec> specs = GptOf(2, 4 * 3, 17, 3);
    for (int layer = 0; layer < 2; ++layer) {
      const Cut by_expert{.axis = Axis::kEp, .dim = 0};
      specs.push_back({.name = fmt::format("layers.{}.up", layer),
                       .shape = {8, 6, 5},
                       .cuts = {by_expert, {.axis = Axis::kEtp, .dim = 1}},
                       .layer = layer,
                       .of_experts = true});
      specs.push_back({.name = fmt::format("layers.{}.down_bias", layer),
                       .shape = {8, 5},
                       .cuts = {by_expert},
                       .layer = layer,
                       .of_experts = true});
    }
    const auto catalog = WrittenShards(specs, topology);
    ASSERT_TRUE(catalog.ok()) << catalog.status().message();
    const Status covered = CheckCoverage(*catalog);
    EXPECT_TRUE(covered.ok()) << ToString(topology) << ": " << covered.message();
  }
}

TEST(PlacementTest, AStackOfVectorsIsNotAMatrix) {
  EXPECT_TRUE((ParameterSpec{.name = "up", .shape = {8, 6, 5}, .of_experts = true}.is_matrix()));
  EXPECT_FALSE((ParameterSpec{.name = "up_bias", .shape = {8, 6}, .of_experts = true}.is_matrix()));
  EXPECT_TRUE((ParameterSpec{.name = "up", .shape = {8, 6}}.is_matrix()));
  EXPECT_FALSE((ParameterSpec{.name = "norm", .shape = {8}}.is_matrix()));
}

TEST(PlacementTest, PiecesOfAPartitionAreContiguous) {
  const auto specs = GptOf(3, 12, 17, 3);
  const Topology topology{2, 1, 3, 1};
  const auto layout = LayoutOf(specs, topology, 1);
  ASSERT_TRUE(layout.ok());
  for (int dp = 0; dp < 3; ++dp) {
    uint64_t end = layout->dense.Partition(dp).begin;
    for (const PlacedPiece& piece : PiecesOf(*layout, topology, topology.Moved(1, Axis::kDp, dp))) {
      EXPECT_GE(piece.flat_begin, end);
      end = piece.flat_begin + piece.range.size();
      EXPECT_LE(end, layout->dense.Partition(dp).end);
    }
  }
}

TEST(PlacementTest, TiedEmbeddingIsHeldByFirstAndLastStageAndWrittenByTheFirst) {
  const auto specs = GptOf(4, 8, 17, 2);
  const Topology topology{1, 2, 1, 0};
  const auto first = LayoutOf(specs, topology, 0), last = LayoutOf(specs, topology, 1);
  ASSERT_TRUE(first.ok() && last.ok());
  EXPECT_EQ(first->parameters.front().index, 0u);
  EXPECT_TRUE(first->parameters.front().writes);
  EXPECT_EQ(last->parameters.front().index, 0u);
  EXPECT_FALSE(last->parameters.front().writes);
}

TEST(PlacementTest, IndivisibleHeadsAreRefusedByName) {
  const auto layout = LayoutOf(GptOf(1, 12, 17, 4), {2, 1, 1, 0}, 0);  // 3 heads of 4
  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(layout.status().message().find(
                "layers.0.query: 3 units of 4 in dimension 0 are not a multiple of TP=2"),
            std::string::npos)
      << layout.status().message();
}

TEST(PlacementTest, PaddedColumnsAreRefusedByName) {
  const auto layout = LayoutOf({Spec("odd", {6, 4}, {{.dim = 1, .pad = 8}}, 0)}, {.tp = 2}, 0);
  EXPECT_EQ(layout.status().message(), "tensor odd: only dimension 0 can be padded");
}

TEST(PlacementTest, MoreStagesThanLayersAreRefused) {
  const auto layout = LayoutOf(GptOf(2, 8, 17, 2), {1, 3, 1, 0}, 0);
  ASSERT_FALSE(layout.ok());
  EXPECT_NE(layout.status().message().find("PP=3 is more than the model's 2 layers"), std::string::npos);
}

TEST(PlacementTest, UnevenLayersGoToTheFirstStages) {
  EXPECT_EQ(LayersPerStage(7, 3), (std::vector<int>{3, 2, 2}));
  EXPECT_EQ(StageOf(2, {3, 2, 2}), 0);
  EXPECT_EQ(StageOf(3, {3, 2, 2}), 1);
  EXPECT_EQ(StageOf(kAfterLayers, {3, 2, 2}), 2);
}

}  // namespace
}  // namespace cairn
