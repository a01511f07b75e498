#include "runtime/data/indexed_dataset_builder.h"

#include <algorithm>
#include <random>

#include "tests/runtime/data/dataset_fixture.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {
namespace {

std::vector<std::string> FilesIn(const std::string& directory) {
  return *FileSystem::Posix().List(directory);
}

TEST(IndexedDatasetBuilderTest, WritesTheBytesThatMegatronWrites) {
  TempDir dir;
  WriteDataset(dir / "p", TokenType::kU16, {{1, 2, 3}, {258}});
  const std::string expected = std::string("MMIDIDX\0\0", 9) + std::string("\1\0\0\0\0\0\0\0", 8) + "\x08" +
                               std::string("\2\0\0\0\0\0\0\0", 8) + std::string("\3\0\0\0\0\0\0\0", 8) +
                               std::string("\3\0\0\0\1\0\0\0", 8) + std::string(8, '\0') +
                               std::string("\6\0\0\0\0\0\0\0", 8) + std::string(8, '\0') +
                               std::string("\1\0\0\0\0\0\0\0", 8) + std::string("\2\0\0\0\0\0\0\0", 8);
  EXPECT_EQ(ReadFile(dir / "p.idx"), expected);
  EXPECT_EQ(ReadFile(dir / "p.bin"), std::string("\1\0\2\0\3\0\2\1", 8));
}

TEST(IndexedDatasetBuilderTest, NothingIsVisibleBeforeFinishOrLeftWithoutIt) {
  TempDir dir;
  {
    auto builder = IndexedDatasetBuilder::Create(FileSystem::Posix(), dir / "p", TokenType::kI32);
    ASSERT_TRUE(builder.ok());
    ASSERT_TRUE(builder->Add(std::vector<int32_t>(1'000'000, 7)).ok());
    ASSERT_TRUE(builder->EndDocument().ok());
    for (const std::string& name : FilesIn(dir.path()))
      EXPECT_NE(name.find(".partial-"), std::string::npos) << name;
  }
  EXPECT_TRUE(FilesIn(dir.path()).empty());
}

TEST(IndexedDatasetBuilderTest, ExistingFilesAreNeverOverwritten) {
  for (const std::string suffix : {".bin", ".idx"}) {
    TempDir dir;
    WriteFile(dir / ("p" + suffix), "precious");
    const auto builder = IndexedDatasetBuilder::Create(FileSystem::Posix(), dir / "p", TokenType::kU16);
    ASSERT_FALSE(builder.ok());
    EXPECT_EQ(builder.status().kind(), StatusKind::kAlreadyExists);
    EXPECT_EQ(ReadFile(dir / ("p" + suffix)), "precious");
  }
}

TEST(IndexedDatasetBuilderTest, FileThatAppearsLaterIsNotOverwritten) {
  TempDir dir;
  auto builder = IndexedDatasetBuilder::Create(FileSystem::Posix(), dir / "p", TokenType::kU16);
  ASSERT_TRUE(builder.ok());
  WriteFile(dir / "p.idx", "precious");
  EXPECT_EQ(builder->Finish().kind(), StatusKind::kAlreadyExists);
  EXPECT_EQ(ReadFile(dir / "p.idx"), "precious");
}

// The index makes it a dataset: even after a power loss it exists only if the tokens do.
TEST(IndexedDatasetBuilderTest, TokensAreDurableBeforeTheIndex) {
  class Recorder final : public WrappedFileSystem {
   public:
    using WrappedFileSystem::WrappedFileSystem;
    std::string calls;

   private:
    Status Do(const FsCall& call, const std::function<Status()>& run) override {
      if (call.kind == FsCall::Kind::kRename) calls += call.to->substr(call.to->size() - 3) + " ";
      if (call.kind == FsCall::Kind::kSyncDir) calls += "sync ";
      return run();
    }
  };
  TempDir dir;
  Recorder fs(FileSystem::Posix());
  auto builder = IndexedDatasetBuilder::Create(fs, dir / "p", TokenType::kU16);
  ASSERT_TRUE(builder.ok());
  ASSERT_TRUE(builder->EndDocument().ok());
  ASSERT_TRUE(builder->Finish().ok());
  EXPECT_EQ(fs.calls, "bin sync idx sync ");
}

TEST(IndexedDatasetBuilderTest, MissingDirectoryIsNotFound) {
  TempDir dir;
  const auto builder = IndexedDatasetBuilder::Create(FileSystem::Posix(), dir / "no/p", TokenType::kU16);
  ASSERT_FALSE(builder.ok());
  EXPECT_EQ(builder.status().kind(), StatusKind::kNotFound) << builder.status().message();
}

// More documents than a block of lengths holds, and documents added in parts.
TEST(IndexedDatasetBuilderTest, ManyDocumentsRoundTrip) {
  TempDir dir;
  std::mt19937 random(1);
  constexpr uint64_t kDocuments = 600'000;
  std::vector<int32_t> lengths;
  auto builder = IndexedDatasetBuilder::Create(FileSystem::Posix(), dir / "p", TokenType::kU16);
  ASSERT_TRUE(builder.ok());
  for (uint64_t k = 0; k < kDocuments; ++k) {
    lengths.push_back(static_cast<int32_t>(random() % 4));
    for (int32_t i = 0; i < lengths.back(); ++i) {
      ASSERT_TRUE(builder->Add(std::vector<int32_t>{static_cast<int32_t>(k % 60'000)}).ok());
    }
    ASSERT_TRUE(builder->EndDocument().ok());
  }
  ASSERT_TRUE(builder->Finish().ok());
  const auto dataset = IndexedDataset::Open(dir / "p");
  ASSERT_TRUE(dataset.ok()) << dataset.status().message();
  ASSERT_EQ(dataset->document_count(), kDocuments);
  EXPECT_EQ(dataset->SequenceLengths({0, kDocuments}).value(), lengths);
  for (uint64_t k = 0; k < kDocuments; k += 997) {
    EXPECT_EQ(Tokens(*dataset, k), std::vector<int64_t>(lengths[k], static_cast<int64_t>(k % 60'000)));
  }
}

}  // namespace
}  // namespace cairn
