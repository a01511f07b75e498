#include "tools/serve/content_shard.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "ckpt/step/verify.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

StateDict::Content Bytes(const std::string& name, const std::string& bytes) {
  return {{.spec = {.name = name, .shape = {bytes.size()}}, .role = Role::kJson, .dtype = Dtype::kU8}, bytes};
}

class ContentShardTest : public testing::Test {
 protected:
  // The bytes of each piece, read from the file, by name. Empty if there is no file.
  std::map<std::string, std::string> Written(const std::vector<StateDict::Content>& contents, int64_t step) {
    const StepIdentity identity{"run", step};
    const std::string step_dir = directory_ / std::to_string(step);
    EXPECT_TRUE(fs_.MakeDir(step_dir).ok());
    const auto receipt = shard_.Write(fs_, step_dir, "s.h5", identity, contents);
    EXPECT_TRUE(receipt.ok()) << receipt.status().message();
    std::map<std::string, std::string> written;
    if (!receipt.ok() || !*receipt) return written;
    const auto file = ReadSmallFile(fs_, JoinPath(step_dir, "s.h5"), 1 << 20).value();
    for (const Piece& piece : (*receipt)->catalog.pieces) {
      const std::string bytes = file.substr(piece.file_offset, piece.stored_bytes);
      written[(*receipt)->catalog.tensors[piece.tensor].spec.name] = bytes;
      digests_.push_back(piece.chunks.at(0));
    }
    return written;
  }

  FileSystem& fs_ = FileSystem::Posix();
  TempDir directory_;
  ContentShard shard_;
  std::vector<Digest> digests_;
};

TEST_F(ContentShardTest, SavesOfDifferentSizesKeepTheirBytes) {
  using Map = std::map<std::string, std::string>;
  EXPECT_EQ(Written({Bytes("a", "one"), Bytes("b", "two!")}, 1), (Map{{"a", "one"}, {"b", "two!"}}));
  EXPECT_EQ(Written({Bytes("a", "ONE"), Bytes("b", "TWO!")}, 2), (Map{{"a", "ONE"}, {"b", "TWO!"}}));
  EXPECT_EQ(Written({Bytes("a", "longer"), Bytes("b", "")}, 3), (Map{{"a", "longer"}}));
  EXPECT_EQ(Written({Bytes("c", "longer")}, 4), (Map{{"c", "longer"}}));
  const std::string pages(3 * kChunkBytes / 2, 'x');
  EXPECT_TRUE(shard_.Write(fs_, directory_.path(), "s.h5", {"run", 5}, std::vector{Bytes("a", pages)}).ok());
}

TEST_F(ContentShardTest, DigestsMatchTheSavedStep) {
  Written({Bytes("a", "one")}, 1);
  Written({Bytes("a", "one")}, 2);
  ASSERT_EQ(digests_.size(), 2u);
  EXPECT_NE(digests_[0], digests_[1]);
}

TEST_F(ContentShardTest, ReadsBackWrittenBytesAndDetectsDamage) {
  const StepIdentity identity{"run", 1};
  const auto receipt = shard_.Write(fs_, directory_.path(), "s.h5", identity, std::vector{Bytes("a", "one")});
  ASSERT_TRUE(receipt.ok() && *receipt);
  EXPECT_TRUE(ReadBackShard(fs_, directory_.path(), **receipt, identity).ok());
  std::fstream file(directory_ / "s.h5", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<int64_t>((*receipt)->catalog.pieces.at(0).file_offset));
  file << "O";
  file.close();
  EXPECT_EQ(ReadBackShard(fs_, directory_.path(), **receipt, identity).kind(), StatusKind::kCorrupt);
}

TEST_F(ContentShardTest, EmptyValuesHaveNoFile) {
  EXPECT_TRUE(Written({Bytes("a", "")}, 1).empty());
  EXPECT_TRUE(Written({}, 2).empty());
  EXPECT_TRUE(fs_.List(directory_ / "1").value().empty());
}

}  // namespace
}  // namespace cairn
