#include "runtime/data/gpt_dataset.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

std::shared_ptr<const IndexedDataset> Open(const std::string& prefix) {
  auto dataset = IndexedDataset::Open(prefix);
  EXPECT_TRUE(dataset.ok()) << dataset.status().message();
  return std::make_shared<IndexedDataset>(std::move(dataset).value());
}

std::vector<int64_t> SampleOf(const GptDataset& dataset, uint64_t i) {
  std::vector<int64_t> tokens(dataset.seq_length() + 1);
  const Status status = dataset.Sample(i, tokens);
  EXPECT_TRUE(status.ok()) << status.message();
  return tokens;
}

// All sequences of the document index, end to end.
std::vector<int64_t> LongText(const IndexedDataset& indexed, const GptDataset& dataset) {
  std::vector<int64_t> text;
  for (const uint32_t sequence : dataset.document_index()) {
    const std::vector<int64_t> tokens = Tokens(indexed, sequence);
    text.insert(text.end(), tokens.begin(), tokens.end());
  }
  return text;
}

TEST(GptDatasetTest, SampleSpansDocuments) {
  TempDir dir;
  WriteDataset(dir / "p", TokenType::kU16, CountingDocuments({5, 7, 3, 6, 0, 9, 4, 12}));
  const auto dataset = GptDataset::Create(Open(dir / "p"), {1, 8}, 9, 4, 1234);
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  // Documents 3 2 7 1 5 6 4; sample 0 is number 8: it starts at (4, 4), token 4 of document 5.
  EXPECT_EQ(SampleOf(*dataset, 0), (std::vector<int64_t>{25, 26, 27, 28, 29}));
  // Sample 9 is number 1: (0, 4): the last two of document 3, the three of document 2.
  EXPECT_EQ(SampleOf(*dataset, 9), (std::vector<int64_t>{19, 20, 12, 13, 14}));
}

// The walk of Megatron's helper against its definition: sample k is tokens [k s, (k+1) s] of the long text.
TEST(GptDatasetTest, SamplesOfRandomShapesCoverTheTextOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    TempDir dir;
    std::vector<int32_t> lengths(1 + random() % 12);
    for (int32_t& length : lengths) length = static_cast<int32_t>(random() % 3 == 0 ? 0 : random() % 20);
    lengths.back() += 1;
    WriteDataset(dir / "p", random() % 2 != 0 ? TokenType::kU16 : TokenType::kI32,
                 CountingDocuments(lengths));
    const auto indexed = Open(dir / "p");
    const uint64_t begin = random() % lengths.size();
    const uint64_t seq_length = 1 + random() % 9;
    const uint64_t num_samples = 1 + random() % 40;
    const auto dataset = GptDataset::Create(indexed, {begin, lengths.size()}, num_samples, seq_length,
                                            static_cast<uint32_t>(random()));
    ASSERT_TRUE(dataset.ok()) << dataset.status().message();
    ASSERT_GE(dataset->size(), num_samples);
    const std::vector<int64_t> text = LongText(*indexed, *dataset);
    std::vector<uint32_t> seen(dataset->shuffle_index().begin(), dataset->shuffle_index().end());
    for (uint64_t i = 0; i < dataset->size(); ++i) {
      const auto first = text.begin() + static_cast<int64_t>(seen[i] * seq_length);
      ASSERT_EQ(SampleOf(*dataset, i),
                std::vector<int64_t>(first, first + static_cast<int64_t>(seq_length) + 1));
    }
    std::sort(seen.begin(), seen.end());
    for (uint64_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], i) << "the shuffle index is a permutation";
    std::map<uint32_t, uint64_t> uses;
    for (const uint32_t id : dataset->document_index()) ++uses[id];
    for (uint64_t id = begin; id < lengths.size(); ++id) ASSERT_EQ(uses[id], dataset->epochs());
  }
}

TEST(GptDatasetTest, OrderDependsOnSeedAndNumberOfSamplesOnly) {
  TempDir dir;
  WriteDataset(dir / "p", TokenType::kU16, CountingDocuments(std::vector<int32_t>(50, 13)));
  const auto indexed = Open(dir / "p");
  const auto a = GptDataset::Create(indexed, {0, 50}, 100, 8, 1);
  const auto b = GptDataset::Create(indexed, {0, 50}, 100, 8, 1);
  const auto c = GptDataset::Create(indexed, {0, 50}, 100, 8, 2);
  EXPECT_TRUE(std::ranges::equal(a->shuffle_index(), b->shuffle_index()));
  EXPECT_FALSE(std::ranges::equal(a->shuffle_index(), c->shuffle_index()));
}

TEST(GptDatasetTest, ADatasetThatIsTruncatedBetweenSamplesIsAnError) {
  TempDir dir;
  for (const std::string file : {".bin", ".idx"}) {
    const std::string prefix = dir / ("data" + file);
    WriteDataset(prefix, TokenType::kU16, CountingDocuments(std::vector<int32_t>(4000, 8)));
    const GptDataset dataset = GptDataset::Create(Open(prefix), {0, 4000}, 100, 16).value();
    std::vector<int64_t> tokens(17);
    ASSERT_TRUE(dataset.Sample(0, tokens).ok());
    std::filesystem::resize_file(prefix + file, 100);
    const Status status = dataset.Sample(0, tokens);
    EXPECT_EQ(status.kind(), StatusKind::kIoError);
    EXPECT_NE(status.message().find(prefix + file + " was truncated"), std::string::npos) << status.message();
  }
}

TEST(GptDatasetTest, BadRequestsNameTheDataset) {
  TempDir dir;
  WriteDataset(dir / "p", TokenType::kU16, CountingDocuments({5, 0}));
  const auto indexed = Open(dir / "p");
  for (const SequenceRange range :
       {SequenceRange{0, 3}, SequenceRange{2, 1}, SequenceRange{1, 2}, SequenceRange{1, 1}}) {
    const auto dataset = GptDataset::Create(indexed, range, 1, 4);
    ASSERT_FALSE(dataset.ok());
    EXPECT_EQ(dataset.status().kind(), StatusKind::kInvalidArgument);
    EXPECT_NE(dataset.status().message().find(dir / "p"), std::string::npos) << dataset.status().message();
  }
  EXPECT_FALSE(GptDataset::Create(indexed, {0, 2}, uint64_t{1} << 33, 1).ok());
  const auto dataset = GptDataset::Create(indexed, {0, 2}, 1, 4);
  std::vector<int64_t> out(5);
  EXPECT_TRUE(dataset->Sample(0, out).ok());
  EXPECT_FALSE(dataset->Sample(1, out).ok());
  EXPECT_FALSE(dataset->Sample(0, std::span(out).first(4)).ok());
}

}  // namespace
}  // namespace cairn
