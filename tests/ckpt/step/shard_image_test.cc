#include "ckpt/step/shard_image.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "ckpt/step/shard_writer.h"
#include "ckpt/step/verify.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

struct Shard {
  std::vector<TensorEntry> tensors;
  std::vector<Piece> pieces;
  std::vector<std::vector<std::byte>> bytes;  // of each piece
};

// One rank's part of a model with a tensor of several chunks.
Shard ShardOf(const StepRecipe& recipe, int rank) {
  Shard shard;
  shard.tensors = TensorsOf(recipe);
  shard.pieces = *PiecesOfRank(recipe, shard.tensors, rank);
  for (const Piece& piece : shard.pieces) {
    const TensorEntry& tensor = shard.tensors[piece.tensor];
    shard.bytes.push_back(GatherPiece(piece, tensor, ValuesOf(tensor, recipe.seed)));
  }
  return shard;
}

void FreeAligned(std::byte* p) { ::operator delete (p, std::align_val_t{kPageBytes}); }

// The same file byte for byte, and the same receipt, as the streaming writer's; for any size of writes,
// engine, and source of the digests. The image starts full of garbage.
TEST(ShardImage, EqualsTheFileOfTheStreamingWriter) {
  FileSystem& fs = FileSystem::Posix();
  const StepIdentity identity{"0123456789abcdef0123456789abcdef", 7};
  const StepRecipe recipe = RecipeOf(
      {.layers = 2, .hidden = 96, .heads = 2, .ffn = 200, .vocab = 25'001, .positions = 6}, {2, 1, 2, 1});
  for (int rank : {0, 3}) {
    const Shard shard = ShardOf(recipe, rank);
    const TempDir temp(TempDir::Place::kDisk);
    WriteRing ring(fs);
    auto stream =
        ShardWriter::Create(fs, ring, temp / "", {"streamed.h5", identity, shard.tensors, shard.pieces});
    ASSERT_TRUE(stream.ok()) << stream.status().message();
    for (size_t i = 0; i < shard.pieces.size(); ++i) ASSERT_TRUE((*stream)->Append(i, shard.bytes[i]).ok());
    const auto expected = (*stream)->Finish();
    ASSERT_TRUE(expected.ok());
    const auto file = ReadSmallFile(fs, temp / "streamed.h5", 1 << 30);

    for (int variant = 0; variant < 4; ++variant) {
      const std::string directory = temp / fmt::format("{}", variant);
      ASSERT_TRUE(fs.MakeDir(directory).ok());
      auto plan = ShardPlan::Make("streamed.h5", identity, shard.tensors, shard.pieces);
      ASSERT_TRUE(plan.ok());
      const std::unique_ptr<std::byte, void (*)(std::byte*)> memory(
          static_cast<std::byte*>(::operator new (plan->file_bytes(), std::align_val_t{kPageBytes})),
          FreeAligned);
      const std::span image(memory.get(), plan->file_bytes());
      std::ranges::fill(image, std::byte{0xa5});
      const bool mine = variant % 2 == 1;
      uint64_t asked = 0;
      const auto fill = [&](uint64_t end) {  // late, as a lazy snapshot does
        const uint64_t begin = std::exchange(asked, end);
        for (size_t i = 0; i < shard.pieces.size(); ++i) {
          if (plan->OffsetOf(i) < begin || plan->OffsetOf(i) >= end)
            continue;  // those before are being written
          std::ranges::copy(shard.bytes[i], image.begin() + static_cast<ptrdiff_t>(plan->OffsetOf(i)));
          for (uint64_t chunk = 0; mine && chunk < ChunkCount(shard.bytes[i].size()); ++chunk) {
            const auto rest = std::span(shard.bytes[i]).subspan(chunk * kChunkBytes);
            plan->SetDigest(
                i, chunk,
                DigestOf(rest.first(std::min<size_t>(rest.size(), kChunkBytes)), plan->ChunkSeed(i, chunk)));
          }
        }
        return OkStatus();
      };
      const auto receipt = WriteShardImage(fs, directory, *plan, image,
                                           {.queue = {.depth = 1 + variant, .uring = variant < 2},
                                            .write_bytes = variant < 2 ? kPageBytes * 8 : uint64_t{8} << 20,
                                            .take_digests = !mine,
                                            .wait_for = fill});
      ASSERT_TRUE(receipt.ok()) << receipt.status().message();
      EXPECT_EQ(asked, plan->catalog_offset());
      EXPECT_EQ(receipt->file, expected->file);
      EXPECT_EQ(receipt->catalog, expected->catalog);
      EXPECT_EQ(*ReadSmallFile(fs, JoinPath(directory, "streamed.h5"), 1 << 30), *file);
    }
  }
}

// In every way of writing an image: values of a weight of two chunks and of its master, at both ends.
TEST(ShardImage, CountsNonFiniteValues) {
  FileSystem& fs = FileSystem::Posix();
  const StepIdentity identity{"0123456789abcdef0123456789abcdef", 7};
  for (const Dtype weights : {Dtype::kBF16, Dtype::kF16}) {
    StepRecipe recipe = RecipeOf({.layers = 1, .hidden = 64, .vocab = 40'000}, {});
    recipe.weights = weights;
    const Shard shard = ShardOf(recipe, 0);
    auto plan = ShardPlan::Make("shard-00000.h5", identity, shard.tensors, shard.pieces);
    ASSERT_TRUE(plan.ok());
    const std::unique_ptr<std::byte, void (*)(std::byte*)> memory(
        static_cast<std::byte*>(::operator new (plan->file_bytes(), std::align_val_t{kPageBytes})),
        FreeAligned);
    const std::span image(memory.get(), plan->file_bytes());
    for (size_t i = 0; i < shard.pieces.size(); ++i) {
      std::vector<std::byte> bytes = shard.bytes[i];
      const TensorEntry& tensor = shard.tensors[shard.pieces[i].tensor];
      if (tensor.spec.name == "embedding.word.weight" && tensor.role <= Role::kMaster) {
        std::fill_n(bytes.begin(), SizeOf(tensor.dtype), std::byte{0x7f});  // a NaN in these types
        std::fill_n(bytes.end() - 4, 4, std::byte{0xff});
      }
      std::ranges::copy(bytes, image.begin() + static_cast<ptrdiff_t>(plan->OffsetOf(i)));
    }
    const uint64_t expected = weights == Dtype::kF16 ? 1 + 2 + 0 + 1 : 0 + 2 + 0 + 1;
    const TempDir temp;
    for (const char* name : {"plain", "encoded", "split"}) ASSERT_TRUE(fs.MakeDir(temp / name).ok());
    const auto encoded = WritePackedImage(fs, temp / "encoded", *plan, image);
    const auto split = WritePackedImage(fs, temp / "split", *plan, image, {.split_master = true});
    const auto plain = WriteShardImage(fs, temp / "plain", *plan, image);
    ASSERT_TRUE(plain.ok() && encoded.ok() && split.ok());
    EXPECT_EQ(plain->nonfinite, expected);
    EXPECT_EQ(encoded->nonfinite, expected);
    EXPECT_EQ(split->nonfinite, expected);
    EXPECT_EQ(ShardReceipt::Decode(plain->Encode())->nonfinite, expected);
  }
}

}  // namespace
}  // namespace cairn
