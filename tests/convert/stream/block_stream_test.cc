#include "convert/stream/block_stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ckpt/run/run_dir.h"
#include "ckpt/step/step_reader.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"
#include "tests/support/unsynced_file_system.h"

namespace cairn {
namespace {

std::vector<Box> BlocksOf(const Dims& shape, uint64_t max_elements) {
  std::vector<Box> boxes;
  for (BlockCursor cursor(shape, max_elements); !cursor.done(); cursor.Advance())
    boxes.push_back(cursor.box());
  return boxes;
}

Dims RandomShape(std::mt19937& random) {
  Dims shape;
  for (int rank = static_cast<int>(random() % 5); rank > 0; --rank) shape.push_back(1 + random() % 6);
  return shape;
}

TEST(BlockCursorTest, BlocksAreInRowMajorOrder) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const Dims shape = RandomShape(random);
    const uint64_t max_elements = 1 + random() % 20;
    uint64_t at = 0;
    for (const Box& box : BlocksOf(shape, max_elements)) {
      ASSERT_LE(box.Volume(), max_elements);
      ASSERT_EQ(FlatIndex(Box::Whole(shape), box.offset), at);
      for (const Segment& segment : Decompose(Box::Whole(shape), {at, at + box.Volume()})) {
        ASSERT_TRUE(Contains(box, segment.box)) << ToString(box) << " of " << ToString(shape);
      }
      at += box.Volume();
    }
    EXPECT_EQ(at, shape.Volume());
  }
}

TEST(BlockCursorTest, IntersectionsOfBlockAndBoxAreContiguousInTheBox) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const Dims shape = RandomShape(random);
    Box box = Box::Whole(shape);
    for (int d = 0; d < shape.rank(); ++d) {
      box.offset[d] = random() % shape[d];
      box.extent[d] = 1 + random() % (shape[d] - box.offset[d]);
    }
    uint64_t at = 0;
    for (const Box& block : BlocksOf(shape, 1 + random() % 20)) {
      const auto common = Intersect(block, box);
      if (!common) continue;
      EXPECT_EQ(FlatIndex(box, common->offset), at);
      at += common->Volume();
    }
    EXPECT_EQ(at, box.Volume());
  }
}

TEST(BlockCursorTest, AScalarHasOneBlockAndAnEmptyTensorNone) {
  EXPECT_EQ(BlocksOf({}, 7), std::vector<Box>{Box{}});
  EXPECT_TRUE(BlocksOf({3, 0}, 7).empty());
}

TEST(BlocksOf, TheTensorsOfASetComeByTurns) {
  TensorTable table;
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32, Dtype::kBF16})
    table.tensors.push_back({{.name = "t", .shape = {5, 2}}, Role::kWeight, dtype});
  BoxSequence blocks = BlocksOf(table, {{2, 1}, {0}}, 16);
  const BoxSequence again = blocks;  // a copy starts from the beginning
  std::vector<std::pair<uint32_t, uint64_t>> found;
  while (const auto block = blocks()) found.emplace_back(block->tensor, block->box.offset[0]);
  EXPECT_EQ(found, (decltype(found){{2, 0}, {1, 0}, {2, 2}, {1, 2}, {2, 4}, {1, 4}, {0, 0}, {0, 4}}));
  EXPECT_EQ(BoxSequence(again)()->tensor, 2);
}

class StreamBlocksTest : public testing::Test {
 protected:
  void SetUp() override {
    recipe_ = RecipeOf({.vocab = 37}, {.tp = 2, .pp = 2, .dp = 3});
    ASSERT_TRUE(MakeStep(fs_, dir_.path(), recipe_).ok());
    auto reader = OpenCheckpoint(fs_, dir_.path(), [](const Status& why) { ADD_FAILURE() << why.message(); });
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    reader_ = std::move(reader).value();
  }
  UnsyncedFileSystem fs_;
  TempDir dir_;
  StepRecipe recipe_;
  std::unique_ptr<StepReader> reader_;
};

TEST_F(StreamBlocksTest, TinyBlocksDeliverEveryTensor) {
  for (const uint64_t block_bytes : {8u, 100u, 1u << 20}) {
    std::vector<std::vector<std::byte>> tensors(reader_->catalog().tensors.size());
    const Status status =
        StreamBlocks(*reader_, AllTensors(reader_->catalog()), block_bytes, [&](const Block& block) {
          EXPECT_LE(block.bytes.size(), block_bytes);
          EXPECT_EQ(block.begin * SizeOf(reader_->catalog().tensors[block.tensor].dtype),
                    tensors[block.tensor].size());
          tensors[block.tensor].insert(tensors[block.tensor].end(), block.bytes.begin(), block.bytes.end());
          return OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < tensors.size(); ++i)
      EXPECT_EQ(tensors[i], ValuesOf(reader_->catalog().tensors[i], recipe_.seed));
  }
}

TEST_F(StreamBlocksTest, AnErrorOfTheVisitorStopsTheStream) {
  int calls = 0;
  const Status status = StreamBlocks(*reader_, AllTensors(reader_->catalog()), 64, [&](const Block&) {
    return ++calls < 5 ? OkStatus() : Status(NoSpace("full"));
  });
  EXPECT_EQ(status.kind(), StatusKind::kNoSpace);
  EXPECT_EQ(calls, 5);
}

TEST_F(StreamBlocksTest, ADamagedShardStopsTheStream) {
  const std::string path = dir_ / ("step-00000100/" + ShardName(1));
  std::FILE* file = std::fopen(path.c_str(), "r+b");
  Piece piece;
  for (const Piece& p : reader_->catalog().pieces)
    if (reader_->catalog().files[p.file] == ShardName(1)) piece = p;
  std::fseek(file, static_cast<long>(piece.file_offset), SEEK_SET);
  const int byte = std::fgetc(file);
  std::fseek(file, static_cast<long>(piece.file_offset), SEEK_SET);
  std::fputc(byte ^ 1, file);
  std::fclose(file);
  const Status status =
      StreamBlocks(*reader_, AllTensors(reader_->catalog()), 64, [&](const Block&) { return OkStatus(); });
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
  EXPECT_NE(status.message().find(DisplayName(reader_->catalog().tensors[piece.tensor])), std::string::npos);
}

}  // namespace
}  // namespace cairn
