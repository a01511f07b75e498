// The slices of a table that was written by hand: no code under test computed its boxes.
#include "ckpt/model/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "ckpt/model/topology.h"

namespace cairn {
namespace {

// "[2:4, 0:8]" of the parameter, in "[2, 8]" in memory.
struct Held {
  const char* box;
  const char* shape;
};

void ExpectSlices(const ParameterSpec& parameter, const Topology& topology, const std::vector<Held>& ranks) {
  ASSERT_EQ(Validate(topology).message(), "");
  ASSERT_EQ(topology.world(), static_cast<int>(ranks.size())) << parameter.name;
  for (int rank = 0; rank < topology.world(); ++rank) {
    const Result<Slice> slice = SliceOf(parameter, topology, rank);
    ASSERT_TRUE(slice.ok()) << slice.status().message();
    EXPECT_EQ(ToString(slice->box), ranks[rank].box) << parameter.name << " rank " << rank;
    EXPECT_EQ(ToString(slice->shape), ranks[rank].shape) << parameter.name << " rank " << rank;
    EXPECT_EQ(WholeOf(parameter, slice->shape, topology).shape, parameter.shape) << parameter.name;
  }
}

TEST(SliceTest, DenseParametersAreCutByTensorParallelism) {
  const Topology topology{.tp = 2, .pp = 2, .dp = 2};  // ranks 0, 2, 4, 6 are tensor parallel rank 0
  const Held first{"[0:4, 0:6]", "[4, 6]"}, second{"[4:8, 0:6]", "[4, 6]"};
  ExpectSlices({.name = "rows", .shape = {8, 6}, .cuts = {{.dim = 0, .unit = 2}}}, topology,
               {first, second, first, second, first, second, first, second});
  const Held left{"[0:8, 0:3]", "[8, 3]"}, right{"[0:8, 3:6]", "[8, 3]"};
  ExpectSlices({.name = "columns", .shape = {8, 6}, .cuts = {{.dim = 1}}}, topology,
               {left, right, left, right, left, right, left, right});
  const Held whole{"[0:8]", "[8]"};
  ExpectSlices({.name = "norm", .shape = {8}}, topology,
               {whole, whole, whole, whole, whole, whole, whole, whole});
  const Held scalar{"[]", "[]"};
  ExpectSlices({.name = "scalar", .shape = {}}, {.tp = 2}, {scalar, scalar});
}

TEST(SliceTest, AVocabularyIsPaddedAtItsEnd) {
  // 10 rows in multiples of 4 per rank: 16 in memory. The last rank has only padding.
  const ParameterSpec words{.name = "words", .shape = {10, 3}, .cuts = {{.dim = 0, .pad = 4}}};
  ExpectSlices(words, {.tp = 2}, {{"[0:8, 0:3]", "[8, 3]"}, {"[8:10, 0:3]", "[8, 3]"}});
  ExpectSlices(words, {.tp = 4},
               {{"[0:4, 0:3]", "[4, 3]"},
                {"[4:8, 0:3]", "[4, 3]"},
                {"[8:10, 0:3]", "[4, 3]"},
                {"[10:10, 0:3]", "[4, 3]"}});
}

TEST(SliceTest, PaddingOfOneCutsLikeDTensor) {
  ExpectSlices({.name = "columns", .shape = {2, 10}, .cuts = {{.dim = 1, .pad = 1}}}, {.tp = 6},
               {{"[0:2, 0:2]", "[2, 2]"},
                {"[0:2, 2:4]", "[2, 2]"},
                {"[0:2, 4:6]", "[2, 2]"},
                {"[0:2, 6:8]", "[2, 2]"},
                {"[0:2, 8:10]", "[2, 2]"},
                {"[0:2, 10:10]", "[2, 2]"}});
}

TEST(SliceTest, ExpertsAreCutByTheirOwnAxes) {
  // 4 ranks of a stage: ranks 0 and 1 have experts 0 and 1, each a half of every row range.
  const ParameterSpec up{.name = "up",
                         .shape = {4, 6, 2},
                         .cuts = {{.axis = Axis::kEp, .dim = 0}, {.axis = Axis::kEtp, .dim = 1}},
                         .of_experts = true};
  ExpectSlices(up, {.tp = 2, .dp = 2, .ep = 2},
               {{"[0:2, 0:3, 0:2]", "[2, 3, 2]"},
                {"[0:2, 3:6, 0:2]", "[2, 3, 2]"},
                {"[2:4, 0:3, 0:2]", "[2, 3, 2]"},
                {"[2:4, 3:6, 0:2]", "[2, 3, 2]"}});
  // Experts whole on each rank, spread over all four: the tensor parallel ranks hold different ones.
  ExpectSlices(up, {.tp = 2, .dp = 2, .ep = 4, .etp = 1},
               {{"[0:1, 0:6, 0:2]", "[1, 6, 2]"},
                {"[1:2, 0:6, 0:2]", "[1, 6, 2]"},
                {"[2:3, 0:6, 0:2]", "[1, 6, 2]"},
                {"[3:4, 0:6, 0:2]", "[1, 6, 2]"}});
  // Two replicas of two halves of the experts: ranks 0 and 2 hold the same.
  ExpectSlices(up, {.dp = 4, .ep = 2},
               {{"[0:2, 0:6, 0:2]", "[2, 6, 2]"},
                {"[2:4, 0:6, 0:2]", "[2, 6, 2]"},
                {"[0:2, 0:6, 0:2]", "[2, 6, 2]"},
                {"[2:4, 0:6, 0:2]", "[2, 6, 2]"}});
}

TEST(SliceTest, ASizeThatDoesNotDivideIsRefused) {
  const auto refusal = [](const ParameterSpec& parameter, const Topology& topology) {
    return std::string(SliceOf(parameter, topology, 0).status().message());
  };
  EXPECT_EQ(refusal({.name = "query", .shape = {12, 4}, .cuts = {{.dim = 0, .unit = 4}}}, {.tp = 2}),
            "tensor query: 3 units of 4 in dimension 0 are not a multiple of TP=2; choose another TP");
  EXPECT_EQ(refusal({.name = "up", .shape = {6, 4}, .cuts = {{.axis = Axis::kEp}}, .of_experts = true},
                    {.dp = 4, .ep = 4}),
            "tensor up: 6 units of 1 in dimension 0 are not a multiple of EP=4; choose another EP");
}

TEST(TopologyTest, GroupsOfEachAxis) {
  using testing::ElementsAre;
  const Topology topology{.tp = 2, .pp = 2, .dp = 4, .ep = 4, .etp = 1};  // 16 ranks
  EXPECT_THAT(topology.GroupOf(5, Axis::kTp), ElementsAre(4, 5));
  EXPECT_THAT(topology.GroupOf(5, Axis::kDp), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(topology.GroupOf(5, Axis::kPp), ElementsAre(5, 13));
  EXPECT_THAT(topology.GroupOf(5, Axis::kEtp), ElementsAre(5));
  EXPECT_THAT(topology.GroupOf(5, Axis::kEp), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(topology.GroupOf(13, Axis::kEdp), ElementsAre(9, 13));
  EXPECT_EQ(topology.Moved(5, Axis::kPp, 1), 13);
}

TEST(TopologyTest, ExpertsThatDoNotDivideAStageAreRefused) {
  EXPECT_EQ(Validate({.tp = 2, .dp = 3, .ep = 4}).message(),
            "topology TP=2 PP=1 DP=3 ZeRO=0 EP=4: 6 ranks of a stage are not a multiple of EP * ETP = 8; "
            "DP must be a multiple of 4");
  EXPECT_FALSE(Validate({.ep = 0}).ok());
  EXPECT_FALSE(Validate({.etp = -1}).ok());
}

}  // namespace
}  // namespace cairn
