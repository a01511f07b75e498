#include "ckpt/step/shard_copy.h"

#include <gtest/gtest.h>

#include "ckpt/model/layout.h"
#include "ckpt/step/step_reader.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

// A step of one shard, and its writer's receipt.
struct WrittenStep {
  TempDir dir;
  FileSystem& fs = FileSystem::Posix();
  StepRecipe recipe = RecipeOf(TinyGpt{}, Topology{});
  std::string from;
  ShardReceipt receipt;

  WrittenStep() {
    const Status made = MakeStep(fs, dir / "run", recipe);
    EXPECT_TRUE(made.ok()) << made.message();
    from = JoinPath(dir / "run", StepDirName(recipe.step));
    const auto reader = StepReader::Open(fs, from);
    receipt.file = (*reader)->manifest().files[0];
    static_cast<TensorTable&>(receipt.catalog) = (*reader)->catalog();
    for (const Piece& piece : (*reader)->catalog().pieces) receipt.catalog.pieces.push_back(piece);
    EXPECT_TRUE(fs.MakeDir(dir / "to").ok());
  }
  Status Copy() { return CopyShard(fs, from, dir / "to", receipt, {recipe.run, recipe.step}); }
  std::string Bytes(const std::string& directory) {
    return ReadSmallFile(fs, JoinPath(directory, receipt.file.name), 1 << 30).value();
  }
};

TEST(ShardCopy, HasTheSameBytes) {
  WrittenStep step;
  const Status status = step.Copy();
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(step.Bytes(step.dir / "to") == step.Bytes(step.from));
}

TEST(ShardCopy, DetectsDamageOfTheSource) {
  WrittenStep step;
  const std::string whole = step.Bytes(step.from), path = JoinPath(step.from, step.receipt.file.name);
  for (const size_t at : {size_t{1000}, static_cast<size_t>(step.receipt.catalog.pieces[0].file_offset) + 5,
                          whole.size() - 1}) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    ASSERT_TRUE(step.fs.RemoveFile(path).ok());
    ASSERT_TRUE(WriteSmallFile(step.fs, path, flipped).ok());
    EXPECT_EQ(step.Copy().kind(), StatusKind::kCorrupt) << at;
    ASSERT_TRUE(step.fs.RemoveFile(JoinPath(step.dir / "to", step.receipt.file.name)).ok());
  }
}

}  // namespace
}  // namespace cairn
