#include <algorithm>
#include <numeric>

#include "runtime/data/blend_index.h"
#include "runtime/data/blend_spec.h"
#include "runtime/data/blended_dataset.h"
#include "runtime/data/data_sets.h"
#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

std::vector<std::string> Words(std::initializer_list<const char*> words) {
  return {words.begin(), words.end()};
}

TEST(BlendIndexTest, TheDatasetFurthestBehindGivesTheNextSample) {
  const BlendIndex index = BuildBlendIndex(std::vector{0.5, 0.3, 0.2}, 10);
  EXPECT_EQ(index.dataset, (std::vector<uint16_t>{0, 1, 2, 0, 1, 0, 2, 0, 1, 0}));
  EXPECT_EQ(index.sample, (std::vector<uint32_t>{0, 0, 0, 1, 1, 2, 1, 3, 2, 4}));
}

TEST(BlendSpecTest, DataPathIsPrefixesOrWeightsAndPrefixes) {
  const auto one = ParseDataPath(Words({"wiki"}));
  EXPECT_EQ(one->prefixes, Words({"wiki"}));
  EXPECT_FALSE(one->weights);
  EXPECT_EQ(ParseDataPath(Words({"a", "b"}))->prefixes, Words({"a", "b"}));
  EXPECT_EQ(ParseDataPath(Words({"1", "2", "3"}))->prefixes, Words({"1", "2", "3"}));
  const auto blend = ParseDataPath(Words({"0.3", "a", "1e-2", "b"}));
  EXPECT_EQ(blend->prefixes, Words({"a", "b"}));
  EXPECT_EQ(*blend->weights, (std::vector{0.3, 0.01}));
  for (const auto& words :
       {Words({"0.3", "a", "x", "b"}), Words({"0", "a"}), Words({"-1", "a", "1", "b"}), Words({})})
    EXPECT_EQ(ParseDataPath(words).status().kind(), StatusKind::kInvalidArgument);
}

TEST(BlendSpecTest, GroupsAreNamedPartsWithWeightAndRange) {
  const auto group = ParseSplitGroup("valid_ar:  0.25 0.949:1 a/b,0.75 0:.5   c ");
  ASSERT_TRUE(group.ok()) << group.status().message();
  EXPECT_EQ(group->name, "valid_ar");
  ASSERT_EQ(group->parts.size(), 2u);
  EXPECT_EQ(group->parts[0].prefix, "a/b");
  EXPECT_EQ(group->parts[0].begin, 0.949);
  EXPECT_EQ(group->parts[1].weight, 0.75);
  EXPECT_EQ(group->parts[1].end, 0.5);
  for (const char* bad :
       {"", "train", "train:", "train: 1 a", "train: 1 0-1 a", "train: 1 1:0 a", "train: 1 0:2 a",
        "train: -1 0:1 a", "train: 0 0:1 a", "train: 1 0:1 a,", "1 0:1 a", "train: nan 0:1 a"})
    EXPECT_EQ(ParseSplitGroup(bad).status().kind(), StatusKind::kInvalidArgument) << bad;
}

TEST(BlendSpecTest, FilesHoldGroupsInQuotes) {
  EXPECT_EQ(*SplitGroupsIn("\"a: 1 0:1 p\" \"b: 1 0:1 q\"\n"), Words({"a: 1 0:1 p", "b: 1 0:1 q"}));
  EXPECT_EQ(*SplitGroupsIn("\"a: 1 0:1 p\"\n\n\"b: 1 0:1 q\""), Words({"a: 1 0:1 p", "b: 1 0:1 q"}));
  for (const char* bad : {"", " \n", "a: 1 0:1 p", "\"a: 1 0:1 p", "\"a: 1 0:1 p\" x"})
    EXPECT_EQ(SplitGroupsIn(bad).status().kind(), StatusKind::kInvalidArgument) << bad;
}

TEST(DataSetsTest, EachSampleComesFromItsDatasetAndResumesInOrder) {
  TempDir dir;
  WriteDataset(dir / "a", TokenType::kU16, std::vector<std::vector<int32_t>>(20, std::vector<int32_t>(9, 1)));
  WriteDataset(dir / "b", TokenType::kI32, std::vector<std::vector<int32_t>>(20, std::vector<int32_t>(9, 2)));
  DataRequest request{.data_path = {"3", dir / "a", "1", dir / "b"},
                      .split = "8,1,1",
                      .train_samples = 40,
                      .valid_samples = 4,
                      .test_samples = 4,
                      .seq_length = 8};
  const auto sets = OpenDataSets(request);
  ASSERT_TRUE(sets.ok()) << sets.status().message();
  ASSERT_EQ(sets->valid.size(), 1u);
  ASSERT_EQ(sets->test.size(), 1u);
  int64_t sum = 0;
  std::vector<int64_t> tokens(9);
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(sets->train->Sample(i, tokens).ok());
    sum += tokens[0];
  }
  EXPECT_EQ(sum, 30 * 1 + 10 * 2);
  EXPECT_TRUE(sets->train->SameOrderFor(40));
  EXPECT_FALSE(sets->train->SameOrderFor(4000));
  request.split = "9,1,0";
  EXPECT_TRUE(OpenDataSets(request)->test.empty());
}

std::vector<std::string> DescriptionOf(const std::vector<std::vector<int32_t>>& documents) {
  TempDir dir;
  WriteDataset(dir / "a", TokenType::kI32, documents);
  const auto sets = OpenDataSets(
      {.data_path = {dir / "a"}, .split = "1", .train_samples = 4, .valid_samples = 0, .seq_length = 8});
  return sets.ok() ? sets->train->description() : std::vector<std::string>{};
}

TEST(DataSetsTest, FilesOfEqualSizeWithOtherTokensAreOtherData) {
  for (const int32_t length : {9, 50'000}) {  // smaller and larger than the pieces that are read
    std::vector<std::vector<int32_t>> documents = CountingDocuments({length, length});
    const std::vector<std::string> recorded = DescriptionOf(documents);
    ASSERT_EQ(recorded.size(), 1u);
    EXPECT_TRUE(SameData(recorded, DescriptionOf(documents)));
    std::string earlier = recorded[0];  // versions without a digest
    earlier.resize(earlier.rfind(", digest "));
    EXPECT_TRUE(SameData({earlier}, recorded));
    for (auto& document : documents) std::ranges::reverse(document);
    EXPECT_FALSE(SameData(recorded, DescriptionOf(documents)));
    EXPECT_TRUE(SameData({earlier}, DescriptionOf(documents)));
  }
}

TEST(DataSetsTest, NamesMissingData) {
  TempDir dir;
  WriteDataset(dir / "a", TokenType::kU16, std::vector<std::vector<int32_t>>(4, std::vector<int32_t>(9, 1)));
  DataRequest request{
      .data_path = {dir / "a", dir / "none", dir / "a"}, .split = "1", .train_samples = 4, .seq_length = 8};
  EXPECT_NE(OpenDataSets(request).status().message().find(dir / "none"), std::string::npos);
  request.data_path = {dir / "a", dir / "a"};
  request.train_samples = 100;
  EXPECT_NE(OpenDataSets(request).status().message().find("each dataset is read once, 8 samples"),
            std::string::npos)
      << OpenDataSets(request).status().message();
  request.data_path.clear();
  request.train_groups = {"train: 1 0:1 " + (dir / "a"), "more: 1 0:1 " + (dir / "a")};
  EXPECT_FALSE(OpenDataSets(request).ok());
  request.train_groups.pop_back();
  EXPECT_TRUE(OpenDataSets(request).ok()) << OpenDataSets(request).status().message();
}

}  // namespace
}  // namespace cairn
