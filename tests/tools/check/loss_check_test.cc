#include "tools/check/loss_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "runtime/data/indexed_dataset.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

std::vector<std::vector<int32_t>> DocumentsOf(const std::string& prefix) {
  const auto dataset = IndexedDataset::Open(prefix);
  EXPECT_TRUE(dataset.ok()) << dataset.status().message();
  std::vector<std::vector<int32_t>> documents;
  for (uint64_t i = 0; dataset.ok() && i < dataset->document_count(); ++i) {
    std::vector<int64_t> tokens(dataset->SequenceLengths({i, i + 1}).value()[0]);
    EXPECT_TRUE(dataset->CopyTokens(i, 0, tokens).ok());
    documents.emplace_back(tokens.begin(), tokens.end());
  }
  return documents;
}

TEST(LossBatchesTest, ParsesSourceAndCount) {
  EXPECT_EQ(ParseLossBatches("mock")->count, kDefaultBatches);
  const auto three = ParseLossBatches("data/pile:3");
  EXPECT_EQ(three->source, "data/pile");
  EXPECT_EQ(three->count, 3);
  EXPECT_EQ(ParseLossBatches("host:pile")->source, "host:pile");
  EXPECT_FALSE(ParseLossBatches("mock:0").ok());
  EXPECT_FALSE(ParseLossBatches(":3").ok());
}

TEST(LossBatchesTest, FitsToTheSmallerModel) {
  const nlohmann::json small = {{"vocab_size", 50}, {"max_position_embeddings", 64}};
  const nlohmann::json large = {{"vocab_size", 70}, {"max_position_embeddings", 4096}};
  LossBatches batches;
  ASSERT_TRUE(FitToModels(large, small, 0, batches).ok());
  EXPECT_EQ(batches.seq_length, 64);
  EXPECT_EQ(batches.vocabulary, 50);
  ASSERT_TRUE(FitToModels(large, large, 0, batches).ok());
  EXPECT_EQ(batches.seq_length, kDefaultSeqLength);
  EXPECT_FALSE(FitToModels(large, small, 65, batches).ok());
}

TEST(LossBatchesTest, MakesADatasetOfTokenIds) {
  const TempDir dir, other;
  std::ofstream(dir / "ids.txt") << "1 2,3\n\n 40\r\n";
  const auto prefix = DatasetOf(FileSystem::Posix(), {.source = dir / "ids.txt"}, dir.path());
  ASSERT_TRUE(prefix.ok()) << prefix.status().message();
  EXPECT_EQ(DocumentsOf(*prefix), (std::vector<std::vector<int32_t>>{{1, 2, 3}, {40}}));
  EXPECT_EQ(*DatasetOf(FileSystem::Posix(), {.source = *prefix}, other.path()),
            *prefix);  // it is one already
  std::ofstream(dir / "text.txt") << "1 2\n3 four\n";
  EXPECT_NE(DatasetOf(FileSystem::Posix(), {.source = dir / "text.txt"}, other.path())
                .status()
                .message()
                .find("text.txt:2: 'four'"),
            std::string::npos);
  EXPECT_EQ(DatasetOf(FileSystem::Posix(), {.source = dir / "none"}, other.path()).status().kind(),
            StatusKind::kNotFound);
}

TEST(LossBatchesTest, MakesTheSameTokensEachTime) {
  const TempDir a, b;
  const LossBatches batches{.source = "mock", .count = 3, .seq_length = 16, .vocabulary = 50};
  const auto tokens = DocumentsOf(DatasetOf(FileSystem::Posix(), batches, a.path()).value());
  ASSERT_EQ(tokens.size(), 3u);
  for (const auto& document : tokens) {
    EXPECT_EQ(document.size(), 17u);
    for (const int32_t token : document) EXPECT_TRUE(token >= 0 && token < 50) << token;
  }
  EXPECT_EQ(DocumentsOf(DatasetOf(FileSystem::Posix(), batches, b.path()).value()), tokens);
}

TEST(LossCheckTest, ComparesWithinTheTolerance) {
  const auto compare = [](std::vector<double> b) {
    return Compare({"a", {2, 4}}, {"b", std::move(b)}, 16, 1e-6);
  };
  EXPECT_EQ(compare({2, 4}).largest, 0);
  EXPECT_TRUE(compare({2, 4.000001}).equal);
  const LossComparison differs = compare({2, 5});
  EXPECT_FALSE(differs.equal);
  EXPECT_EQ(differs.worst, 1u);
  EXPECT_DOUBLE_EQ(differs.largest, 0.2);
  EXPECT_DOUBLE_EQ(differs.b.mean(), 3.5);
  EXPECT_FALSE(compare({2, std::nan("")}).equal);
  EXPECT_FALSE(Compare({"a", {INFINITY}}, {"b", {INFINITY}}, 16, 1).equal);
}

}  // namespace
}  // namespace cairn
