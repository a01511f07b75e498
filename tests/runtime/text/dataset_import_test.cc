#include <algorithm>
#include <filesystem>

#include "runtime/text/text_import.h"
#include "tests/runtime/data/dataset_fixture.h"

namespace cairn {
namespace {

class DatasetImportTest : public testing::Test {
 protected:
  DatasetImportTest() { WriteFile(dir_ / "input.txt", "one stone\n\ntwo stones\n"); }

  Result<ImportedDataset> Import(DatasetRequest request) {
    request.inputs = {dir_ / "input.txt"};
    request.output_prefix = dir_ / "out";
    return ImportDataset(FileSystem::Posix(), request, [this](const ImportCounts& counts, uint64_t bytes) {
      EXPECT_LE(counts.bytes_read, bytes);
      total_ = bytes;
    });
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path()))
      if (entry.path().filename() != "input.txt") names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }

  TempDir dir_;
  uint64_t total_ = 0;
};

TEST_F(DatasetImportTest, WritesTheDatasetAndItsTokenizer) {
  const DatasetRequest request{.tokenizer = "bytes", .source = {.split_on_blank_lines = true}};
  const auto made = Import(request);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(total_, std::filesystem::file_size(dir_ / "input.txt"));
  EXPECT_EQ(Files(), (std::vector<std::string>{"out.bin", "out.idx", "out.tokenizer"}));
  EXPECT_EQ(made->bin_bytes(), std::filesystem::file_size(dir_ / "out.bin"));
  EXPECT_EQ(made->idx_bytes(), std::filesystem::file_size(dir_ / "out.idx"));
  EXPECT_EQ(IndexedDataset::Open(dir_ / "out")->document_count(), 2u);
  EXPECT_EQ(Import(request).status().kind(), StatusKind::kAlreadyExists);
}

TEST_F(DatasetImportTest, ADryRunCountsAndWritesNothing) {
  const auto counted = Import({.tokenizer = "bytes", .dry_run = true});
  ASSERT_TRUE(counted.ok()) << counted.status().message();
  EXPECT_TRUE(Files().empty());
  const auto made = Import({.tokenizer = "bytes"});
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(counted->bytes(), made->bytes());
}

TEST_F(DatasetImportTest, AFailureLeavesNothing) {
  WriteFile(dir_ / "input.txt", "");
  EXPECT_EQ(Import({.tokenizer = "bytes"}).status().kind(), StatusKind::kInvalidArgument);
  EXPECT_TRUE(Files().empty());
  for (const DatasetRequest& request :
       {DatasetRequest{}, DatasetRequest{.tokenizer = "bytes", .vocab_size = 8},
        DatasetRequest{.vocab_file = "vocab.json"}, DatasetRequest{.train_sentencepiece = true}})
    EXPECT_EQ(Import(request).status().kind(), StatusKind::kInvalidArgument);
}

}  // namespace
}  // namespace cairn
