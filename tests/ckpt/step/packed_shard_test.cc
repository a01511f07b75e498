#include <gtest/gtest.h>

#include <fstream>

#include "ckpt/step/packed_shard_writer.h"
#include "ckpt/step/step_reader.h"
#include "ckpt/step/verify.h"
#include "tests/support/make_step.h"
#include "tests/support/no_threads.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

const StepIdentity kIdentity{"0123456789abcdef0123456789abcdef", 7};

// A tensor of three chunks, one of a chunk exactly, and many small ones; cut over two ranks and ZeRO ranges.
StepRecipe PackedShardRecipe() {
  return RecipeOf({.layers = 2, .hidden = 64, .heads = 2, .ffn = 256, .vocab = 65'536, .positions = 16'384},
                  {2, 1, 2, 1});
}

struct PackedShard {
  std::vector<TensorEntry> tensors;
  std::vector<Piece> pieces;
  std::vector<std::vector<std::byte>> bytes;  // of each piece
};

// As it is in a snapshot.
std::vector<std::byte> ImageOf(const PackedShard& shard, const ShardPlan& plan) {
  std::vector<std::byte> image(plan.file_bytes());
  for (size_t i = 0; i < shard.bytes.size(); ++i)
    std::ranges::copy(shard.bytes[i], image.data() + plan.OffsetOf(i));
  return image;
}

PackedShard PackedShardOf(const StepRecipe& recipe, int rank) {
  PackedShard shard;
  shard.tensors = TensorsOf(recipe);
  shard.pieces = *PiecesOfRank(recipe, shard.tensors, rank);
  for (const Piece& piece : shard.pieces) {
    const TensorEntry& tensor = shard.tensors[piece.tensor];
    shard.bytes.push_back(GatherPiece(piece, tensor, ValuesOf(tensor, recipe.seed)));
  }
  return shard;
}

ShardContents ContentsOf(const PackedShard& shard, const std::string& name) {
  return ShardContents(name, kIdentity, shard.tensors, shard.pieces);
}

std::string FileOf(const std::string& path) { return *ReadSmallFile(FileSystem::Posix(), path, 1 << 30); }

// The same pieces give the same file: by any number of threads, even if the system gives none; by appends
// of any number of chunks, from an image too, in any size of writes.
TEST(PackedShard, BytesDependOnlyOnThePieces) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp(TempDir::Place::kDisk);
  const PackedShard shard = PackedShardOf(PackedShardRecipe(), 1);
  std::string expected;
  for (const int threads : {1, 2, 5, 6}) {
    std::optional<NoThreads> none;
    if (threads == 6) none.emplace();
    WriteRing ring(fs, {.buffer_bytes = uint64_t{64 << 10} << threads});
    ASSERT_TRUE(fs.MakeDir(temp / std::to_string(threads)).ok());
    auto writer = PackedShardWriter::Create(fs, ring, temp / std::to_string(threads),
                                            ContentsOf(shard, "shard-00000.h5"), {.threads = threads});
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    const size_t step = kChunkBytes * threads;
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
    const StepCatalog catalog = PackCatalog(receipt->catalog);
    ASSERT_TRUE(
        VerifyShard(fs, {temp / std::to_string(threads), receipt->file, catalog, kIdentity}, report).ok());
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
  const std::vector<std::byte> image = ImageOf(shard, *plan);
  ASSERT_TRUE(fs.MakeDir(temp / "image").ok());
  uint64_t waited = 0;
  const auto receipt = WritePackedImage(fs, temp / "image", *plan, image, {.wait_for = [&](uint64_t end) {
                                          EXPECT_GE(end, waited);
                                          waited = end;
                                        }});
  ASSERT_TRUE(receipt.ok()) << receipt.status().message();
  EXPECT_GT(waited, plan->catalog_offset() - kPageBytes);
  VerifyReport report;
  ASSERT_TRUE(
      VerifyShard(fs, {temp / "image", receipt->file, PackCatalog(receipt->catalog), kIdentity}, report)
          .ok());
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(receipt->catalog.bytes(), plan->catalog().bytes());
}

// A compressed step reads like the plain one: whole tensors, and boxes that cross pieces and chunks.
void ExpectReadsAsThePlainStep(StepRecipe recipe, double most) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp;
  ASSERT_TRUE(MakeStep(fs, temp / "plain", recipe).ok());
  recipe.packed = true;
  const Status made = MakeStep(fs, temp / "packed", recipe);
  ASSERT_TRUE(made.ok()) << made.message();
  const auto plain = StepReader::Open(fs, temp / "plain/step-00000100");
  const auto packed = StepReader::Open(fs, temp / "packed/step-00000100");
  ASSERT_TRUE(plain.ok() && packed.ok()) << packed.status().message();
  EXPECT_LT((*packed)->manifest().bytes(), (*plain)->manifest().bytes() * most);
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

TEST(PackedShard, ReadsLikeThePlainStep) { ExpectReadsAsThePlainStep(PackedShardRecipe(), 0.9); }

// Boxes of derived weights cross pieces and chunks, of which their masters have twice as many.
TEST(PackedShard, ReadsLikeThePlainStepWithDerivedWeights) {
  StepRecipe recipe = PackedShardRecipe();
  recipe.weights = Dtype::kF16;
  recipe.split_master = true;
  recipe.unrounded = "embedding.word.weight";
  ExpectReadsAsThePlainStep(recipe, 0.8);
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

// Weights are their rounded masters, except one element of the last layer and all of the final norm.
// Some masters are ties, which a split bf16 weight needs exceptions for.
void RoundWeights(PackedShard& shard) {
  for (size_t i = 0; i < shard.pieces.size(); ++i) {
    const TensorEntry& weight = shard.tensors[shard.pieces[i].tensor];
    if (weight.role != Role::kWeight || weight.spec.name.starts_with("final_norm")) continue;
    for (size_t j = 0; j < shard.pieces.size(); ++j) {
      const TensorEntry& master = shard.tensors[shard.pieces[j].tensor];
      if (master.role != Role::kMaster || master.spec.name != weight.spec.name) continue;
      for (size_t k = 0; k < shard.bytes[i].size() / 2; ++k) {
        uint32_t m;
        std::memcpy(&m, shard.bytes[j].data() + k * 4, 4);
        if (k % 100'000 == 7) m = (m & 0xfffe0000) | 0x18000;  // a tie below an odd high half
        std::memcpy(shard.bytes[j].data() + k * 4, &m, 4);
      }
      shard.bytes[i] = Rounded(shard.bytes[j], weight.dtype);
      if (weight.spec.name == "layers.1.mlp.up.weight") shard.bytes[i][0] ^= std::byte{1};
    }
  }
}

// bf16: masters are restored bit for bit from weights and low halves; fp16: weights from their masters.
// Encoded or not, joined or stored whole; the step takes at most 12 bytes per parameter.
class JoinedShard : public testing::TestWithParam<Dtype> {};
INSTANTIATE_TEST_SUITE_P(PackedShard, JoinedShard, testing::Values(Dtype::kBF16, Dtype::kF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(JoinedShard, IsBitIdenticalToThePlainShard) {
  const bool derives = GetParam() == Dtype::kF16;
  const Codec codec = derives ? Codec::kDerived : Codec::kMasterLow;
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp(TempDir::Place::kDisk);
  StepRecipe recipe = PackedShardRecipe();
  recipe.topology = {1, 1, 1, 0};
  recipe.weights = GetParam();
  PackedShard shard = PackedShardOf(recipe, 0);
  RoundWeights(shard);
  auto plan = ShardPlan::Make("shard-00000.h5", kIdentity, shard.tensors, shard.pieces);
  ASSERT_TRUE(plan.ok());
  const std::vector<std::byte> image = ImageOf(shard, *plan);
  for (const bool encode : {false, true}) {
    const std::string directory = temp / (encode ? "encoded" : "plain");
    ASSERT_TRUE(fs.MakeDir(directory).ok());
    const auto receipt =
        WritePackedImage(fs, directory, *plan, image, {.pack = {.encode = encode}, .split_master = true});
    ASSERT_TRUE(receipt.ok()) << receipt.status().message();
    EXPECT_LT(receipt->file.bytes, image.size() * (encode ? 11.0 : 12.1) / 14);
    EXPECT_EQ(ShardReceipt::Decode(receipt->Encode())->catalog, receipt->catalog);
    const auto seal =
        MakeSeal({kIdentity, recipe.topology, recipe.model, recipe.state}, shard.tensors, {*receipt});
    ASSERT_TRUE(seal.ok() && WriteSeal(fs, directory, *seal).ok()) << seal.status().message();
    const auto step = StepReader::Open(fs, directory);
    ASSERT_TRUE(step.ok()) << step.status().message();
    const VerifyReport report = VerifyHash(fs, **step);
    EXPECT_TRUE(report.problems.empty()) << ToString(report.problems[0]);

    size_t joined = 0, exceptions = 0;
    std::vector<std::vector<std::byte>> loaded;
    std::vector<ReadRequest> requests;
    for (const Piece& piece : (*step)->catalog().pieces) {
      const TensorEntry& tensor = (*step)->catalog().tensors[piece.tensor];
      if (piece.codec == codec) ++joined;
      exceptions += piece.exceptions.size();
      const bool joins = tensor.role == (derives ? Role::kWeight : Role::kMaster) &&
                         !tensor.spec.name.starts_with("final_norm");
      EXPECT_EQ(piece.codec == codec, joins) << DisplayName(tensor);
      loaded.emplace_back(tensor.bytes());
      requests.push_back({piece.tensor, piece.box, loaded.back()});
    }
    EXPECT_GT(joined, 20u);
    EXPECT_GT(exceptions, derives ? 0u : 40u);
    (*step)->SetCacheBytes(0);
    const Status status = (*step)->Load(requests);
    ASSERT_TRUE(status.ok()) << status.message();
    for (size_t i = 0; i < shard.pieces.size(); ++i) {
      const std::string name = DisplayName(shard.tensors[shard.pieces[i].tensor]);
      for (size_t j = 0; j < requests.size(); ++j) {
        if (DisplayName((*step)->catalog().tensors[requests[j].tensor]) != name) continue;
        EXPECT_TRUE(loaded[j] == shard.bytes[i]) << name;
      }
    }
  }
}

// A catalog that says of an fp16 weight and its master that each is computed from the other.
TEST(PackedShard, RefusesCyclesOfJoins) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp;
  StepRecipe recipe = RecipeOf({}, {});
  recipe.weights = Dtype::kF16;
  PackedShard shard = PackedShardOf(recipe, 0);
  RoundWeights(shard);
  auto plan = ShardPlan::Make("shard-00000.h5", kIdentity, shard.tensors, shard.pieces);
  ASSERT_TRUE(plan.ok());
  const std::vector<std::byte> image = ImageOf(shard, *plan);
  auto receipt = WritePackedImage(fs, temp / "", *plan, image, {.split_master = true});
  ASSERT_TRUE(receipt.ok()) << receipt.status().message();
  for (Piece& piece : receipt->catalog.pieces) {
    if (receipt->catalog.tensors[piece.tensor].role != Role::kMaster) continue;
    piece.codec = Codec::kMasterLow;
    piece.stored[0].encoded = true;
    piece.stored_bytes = piece.stored[0].bytes = static_cast<uint32_t>(piece.range.size() * 2);
  }
  const auto seal =
      MakeSeal({kIdentity, recipe.topology, recipe.model, recipe.state}, shard.tensors, {*receipt});
  ASSERT_TRUE(seal.ok() && WriteSeal(fs, temp / "", *seal).ok()) << seal.status().message();
  const auto step = StepReader::Open(fs, temp / "");
  ASSERT_TRUE(step.ok()) << step.status().message();
  for (const Role role : {Role::kWeight, Role::kMaster}) {
    const uint32_t tensor = *(*step)->catalog().Find("embedding.word.weight", role);
    const TensorEntry& entry = (*step)->catalog().tensors[tensor];
    std::vector<std::byte> out(entry.bytes());
    const Status read = (*step)->Load(std::vector<ReadRequest>{{tensor, Box::Whole(entry.spec.shape), out}});
    EXPECT_EQ(read.kind(), StatusKind::kCorrupt);
    EXPECT_NE(read.message().find("must be joined with a bf16 weight, which the step does not have"),
              std::string::npos)
        << read.message();
  }
}

// Reading the weight names its damaged master.
TEST(PackedShard, ADamagedMasterMakesItsDerivedWeightCorrupt) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp;
  StepRecipe recipe = RecipeOf({}, {});
  recipe.weights = Dtype::kF16;
  recipe.packed = recipe.split_master = true;
  ASSERT_TRUE(MakeStep(fs, temp / "run", recipe).ok());
  const std::string directory = temp / "run/step-00000100", path = directory + "/shard-00000.h5";
  const auto step = StepReader::Open(fs, directory);
  ASSERT_TRUE(step.ok()) << step.status().message();
  const auto& catalog = (*step)->catalog();
  const uint32_t weight = *catalog.Find("embedding.word.weight", Role::kWeight);
  const auto [first, last] = catalog.PiecesOfTensor(*catalog.Find("embedding.word.weight", Role::kMaster));
  std::string bad = FileOf(path);
  bad[catalog.pieces[first].file_offset + 9] ^= 1;
  std::ofstream(path, std::ios::binary) << bad;
  std::vector<std::byte> out(catalog.tensors[weight].bytes());
  const Status read = (*step)->ReadBox(weight, Box::Whole(catalog.tensors[weight].spec.shape), out);
  EXPECT_EQ(read.kind(), StatusKind::kCorrupt);
  EXPECT_NE(read.message().find("tensor embedding.word.weight/master does not match its digest"),
            std::string::npos)
      << read.message();
}

TEST(PackedShard, RefusesChunksThatDoNotFit) {
  FileSystem& fs = FileSystem::Posix();
  const TempDir temp;
  const PackedShard shard = PackedShardOf(RecipeOf({}, {}), 0);
  WriteRing ring(fs);
  auto writer = PackedShardWriter::Create(fs, ring, temp / "", ContentsOf(shard, "shard-00000.h5"),
                                          {.direct = Direct::kOff});
  ASSERT_TRUE(writer.ok());
  std::vector<std::byte> longer = shard.bytes[0];
  longer.push_back({});
  EXPECT_EQ((*writer)->Append(0, longer).kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ((*writer)->Append(0, std::span(shard.bytes[0]).first(3)).kind(), StatusKind::kInvalidArgument);
  const auto receipt = (*writer)->Finish();
  ASSERT_FALSE(receipt.ok());
  EXPECT_NE(receipt.status().message().find("is incomplete, 0 of"), std::string::npos)
      << receipt.status().message();
}

}  // namespace
}  // namespace cairn
