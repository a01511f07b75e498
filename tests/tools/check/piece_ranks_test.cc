// The kind: the ranks of a piece are those whose slice has some of it, whoever wrote it: of tensors that are
// cut or not, in uneven and interleaved stages, of experts, of a tied embedding, and of random states.
#include "tools/check/piece_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/make_step.h"
#include "tests/support/open_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::vector<std::string> RanksOf(const std::string& name, const TinyGpt& model, const Topology& topology,
                                 bool placed = true, Role role = Role::kWeight) {
  const TempDir dir;
  EXPECT_TRUE(MakeStep(Fs(), dir / "gpt", RecipeOf(model, topology)).ok());
  const auto step = Open(dir / "gpt");
  const StepCatalog& catalog = step->catalog();
  const PieceRanks ranks(catalog, step->manifest().topology, placed);
  const auto tensor = catalog.Find(name, role);
  EXPECT_TRUE(tensor.ok()) << name;
  std::vector<std::string> lists;
  const auto [first, last] = catalog.PiecesOfTensor(*tensor);
  for (size_t i = first; i < last; ++i) lists.push_back(RankList(ranks.Of(catalog.pieces[i])));
  std::ranges::sort(lists);
  lists.erase(std::unique(lists.begin(), lists.end()), lists.end());
  return lists;
}

using Lists = std::vector<std::string>;

TEST(PieceRanksTest, UnevenStagesHaveTheirOwnRanks) {
  const TinyGpt model{.layers = 4};
  const Topology uneven{.tp = 2, .pp = 2, .dp = 2, .layers_per_stage = {1, 3}};
  EXPECT_EQ(RanksOf("layers.0.mlp.up.weight", model, uneven), (Lists{"0, 2", "1, 3"}));
  EXPECT_EQ(RanksOf("layers.1.mlp.up.weight", model, uneven), (Lists{"4, 6", "5, 7"}));
  EXPECT_EQ(RanksOf("layers.1.mlp.up.weight", model, uneven, true, Role::kMaster), (Lists{"4, 6", "5, 7"}));
  EXPECT_EQ(RanksOf("final_norm.weight", model, uneven), (Lists{"4-7"}));
  EXPECT_EQ(RanksOf("embedding.word.weight", model, uneven), (Lists{"0, 2, 4, 6", "1, 3, 5, 7"}));
  const Topology even{.tp = 2, .pp = 2, .dp = 2};
  EXPECT_EQ(RanksOf("layers.1.mlp.up.weight", model, even), (Lists{"0, 2", "1, 3"}));
}

TEST(PieceRanksTest, ChunksThatTakeTurnsAreOnTheRankOfTheirStage) {
  const Topology interleaved{.pp = 2, .dp = 2, .virtual_stages = 2};
  EXPECT_EQ(RanksOf("layers.1.mlp.up.weight", {.layers = 4}, interleaved), (Lists{"2-3"}));
  EXPECT_EQ(RanksOf("layers.2.mlp.up.weight", {.layers = 4}, interleaved), (Lists{"0-1"}));
}

TEST(PieceRanksTest, ExpertsAreOnTheRanksOfTheirOwnAxes) {
  const TinyGpt mixture{.experts = 4};
  const Topology topology{.tp = 2, .dp = 2, .ep = 2, .etp = 1};
  EXPECT_EQ(RanksOf("layers.0.mlp.experts.up.weight", mixture, topology), (Lists{"0, 2", "1, 3"}));
  EXPECT_EQ(RanksOf("layers.0.mlp.router.weight", mixture, topology), (Lists{"0-3"}));
}

TEST(PieceRanksTest, WithoutPlacementItIsTheRankThatWroteIt) {
  const Topology topology{.tp = 2, .dp = 2};
  for (const std::string& list : RanksOf("layers.0.mlp.up.weight", {}, topology, /*placed=*/false))
    EXPECT_EQ(list.size(), 1u) << list;
  EXPECT_EQ(RanksOf("rng.tp2-pp1-dp2.rank-3", {}, topology, true, Role::kRng), (Lists{"3"}));
}

TEST(PieceRanksTest, ListsAreShort) {
  EXPECT_EQ(RankList({}), "-");
  EXPECT_EQ(RankList({3}), "3");
  EXPECT_EQ(RankList({0, 1, 2, 3, 8, 10, 11}), "0-3, 8, 10-11");
}

}  // namespace
}  // namespace cairn
