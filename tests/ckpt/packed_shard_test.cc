#include <gtest/gtest.h>

#include <fstream>

#include "ckpt/packed_shard_writer.h"
#include "ckpt/step_reader.h"
#include "ckpt/verify.h"
#include "tests/support/make_step.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

const StepIdentity kIdentity{"0123456789abcdef0123456789abcdef", 7};

// A tensor of three chunks, one of a chunk exactly, and many small ones; cut over two ranks and ZeRO ranges.
StepRecipe Recipe() {
  return RecipeOf({.layers = 2, .hidden = 64, .heads = 2, .ffn = 256, .vocab = 65'536, .positions = 16'384},
                  {2, 1, 2, 1});
}

struct Shard {
  std::vector<TensorEntry> tensors;
  std::vector<Piece> pieces;
  std::vector<std::vector<std::byte>> bytes;  // of each piece
};

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

ShardContents ContentsOf(const Shard& shard, const std::string& name) {
  return ShardContents(name, kIdentity, shard.tensors, shard.pieces);
}

std::string FileOf(const std::string& path) { return *ReadSmallFile(FileSystem::Posix(), path, 1 << 30); }

// The same pieces give the same file: by any number of threads, by appends of any size, copied or from an
// image, in any size of writes.
TEST(PackedShard, DependsOnItsPiecesOnly) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp(TempDir::Place::kDisk);
  const Shard shard = ShardOf(Recipe(), 1);
  std::string expected;
  for (const int threads : {1, 2, 5}) {
    WriteRing ring(fs, {.buffer_bytes = uint64_t{64 << 10} << threads});
    ASSERT_TRUE(fs.MakeDir(temp / std::to_string(threads)).ok());
    auto writer = PackedShardWriter::Create(fs, ring, temp / std::to_string(threads),
                                            ContentsOf(shard, "shard-00000.h5"), {.threads = threads});
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    const size_t step = size_t{1'000'003} * threads;
    for (size_t i = 0; i < shard.bytes.size(); ++i)
      for (size_t at = 0; at < shard.bytes[i].size(); at += step) {
        const auto part = std::span(shard.bytes[i]).subspan(at, std::min(step, shard.bytes[i].size() - at));
        ASSERT_TRUE((*writer)->Append(i, part).ok());
      }
    const auto receipt = (*writer)->Finish();
    ASSERT_TRUE(receipt.ok()) << receipt.status().message();
    const std::string file = FileOf(temp / fmt::format("{}/shard-00000.h5", threads));
    EXPECT_EQ(file.size(), receipt->file.bytes);
    EXPECT_EQ(file.size() % kPageBytes, 0u);
    if (expected.empty()) expected = file;
    EXPECT_TRUE(file == expected) << threads;
    VerifyReport report;
    ASSERT_TRUE(VerifyShard(fs, temp / std::to_string(threads), receipt->file, receipt->catalog, 0,
                            kIdentity.run, kIdentity.step, report)
                    .ok());
    EXPECT_TRUE(report.problems.empty()) << ToString(report.problems[0]);
    EXPECT_EQ(report.bytes_checked, file.size());
    const auto decoded = ShardReceipt::Decode(receipt->Encode());
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded->catalog, receipt->catalog);
  }
  uint64_t bytes = 0;
  for (const auto& piece : shard.bytes) bytes += piece.size();
  EXPECT_LT(expected.size(), bytes * 0.9);

  auto plan = ShardPlan::Make("shard-00000.h5", kIdentity, shard.tensors, shard.pieces);
  ASSERT_TRUE(plan.ok());
  std::vector<std::byte> image(plan->file_bytes());
  std::vector<size_t> order(shard.bytes.size());
  for (size_t i = 0; i < order.size(); ++i)
    std::ranges::copy(shard.bytes[i], image.data() + plan->OffsetOf(i));
  ASSERT_TRUE(fs.MakeDir(temp / "image").ok());
  uint64_t waited = 0;
  const auto receipt = WritePackedImage(fs, temp / "image", *plan, image, {.wait_for = [&](uint64_t end) {
                                          EXPECT_GE(end, waited);
                                          waited = end;
                                        }});
  ASSERT_TRUE(receipt.ok()) << receipt.status().message();
  EXPECT_GT(waited, plan->catalog_offset() - kPageBytes);
  VerifyReport report;
  ASSERT_TRUE(VerifyShard(fs, temp / "image", receipt->file, receipt->catalog, 0, kIdentity.run,
                          kIdentity.step, report)
                  .ok());
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(receipt->catalog.bytes(), plan->contents().catalog().bytes());
}

// A compressed step reads as the plain one does: whole tensors, and boxes that cross pieces and chunks.
TEST(PackedShard, ReadsAsThePlainStep) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp;
  StepRecipe recipe = Recipe();
  ASSERT_TRUE(MakeStep(fs, temp / "plain", recipe).ok());
  recipe.packed = true;
  const Status made = MakeStep(fs, temp / "packed", recipe);
  ASSERT_TRUE(made.ok()) << made.message();
  const auto plain = StepReader::Open(fs, temp / "plain/step-00000100");
  const auto packed = StepReader::Open(fs, temp / "packed/step-00000100");
  ASSERT_TRUE(plain.ok() && packed.ok()) << packed.status().message();
  EXPECT_LT((*packed)->manifest().bytes(), (*plain)->manifest().bytes() * 0.9);
  ASSERT_EQ((*plain)->catalog().tensors, (*packed)->catalog().tensors);
  for (uint32_t t = 0; t < (*plain)->catalog().tensors.size(); ++t) {
    const TensorEntry& tensor = (*plain)->catalog().tensors[t];
    Box box = Box::Whole(tensor.spec.shape);
    for (int inset = 0; inset < 2; ++inset) {
      std::vector<std::byte> a(box.Volume() * SizeOf(tensor.dtype)), b(a.size());
      ASSERT_TRUE((*plain)->ReadBox(t, box, a).ok());
      const Status read = (*packed)->ReadBox(t, box, b);
      ASSERT_TRUE(read.ok()) << read.message();
      ASSERT_TRUE(a == b) << DisplayName(tensor);
      for (int d = 0; d < box.rank(); ++d)
        if (box.extent[d] > 2) box.offset[d] += 1, box.extent[d] -= 2;
    }
  }
  const VerifyReport report = VerifyHash(fs, **packed);
  EXPECT_TRUE(report.problems.empty()) << ToString(report.problems[0]);
  EXPECT_TRUE(VerifyStructure(**packed).problems.empty());
}

// One flipped bit anywhere in the file is found and named, before a decoder sees it.
TEST(PackedShard, FindsEveryDamagedByte) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp;
  StepRecipe recipe = RecipeOf({.vocab = 2000}, {1, 1, 1, 0});
  recipe.packed = true;
  ASSERT_TRUE(MakeStep(fs, temp / "run", recipe).ok());
  const std::string directory = temp / "run/step-00000100", path = directory + "/shard-00000.h5";
  const std::string good = FileOf(path);
  const auto step = StepReader::Open(fs, directory);
  ASSERT_TRUE(step.ok());
  int in_tensors = 0;
  for (size_t at = 0; at < good.size(); at += 2003) {
    std::string bad = good;
    bad[at] ^= 0x10;
    std::ofstream(path, std::ios::binary) << bad;
    const VerifyReport report = VerifyHash(fs, **step);
    ASSERT_EQ(report.problems.size(), 1u) << at;
    if (report.problems[0].tensor.empty()) continue;
    ++in_tensors;
    EXPECT_LE(report.problems[0].offset, at);
    EXPECT_EQ(report.problems[0].what, "does not match its digest");
  }
  EXPECT_GT(in_tensors, 30);
}

TEST(PackedShard, RefusesWhatDoesNotFit) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp;
  const Shard shard = ShardOf(RecipeOf({}, {}), 0);
  WriteRing ring(fs);
  auto writer = PackedShardWriter::Create(fs, ring, temp / "", ContentsOf(shard, "shard-00000.h5"),
                                          {.direct = Direct::kOff});
  ASSERT_TRUE(writer.ok());
  std::vector<std::byte> longer = shard.bytes[0];
  longer.push_back({});
  EXPECT_EQ((*writer)->Append(0, longer).kind(), StatusKind::kInvalidArgument);
  ASSERT_TRUE((*writer)->Append(0, std::span(shard.bytes[0]).first(3)).ok());
  const auto receipt = (*writer)->Finish();
  ASSERT_FALSE(receipt.ok());
  EXPECT_NE(receipt.status().message().find("is incomplete, 3 of"), std::string::npos)
      << receipt.status().message();
}

}  // namespace
}  // namespace cairn
