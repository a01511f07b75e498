// The index of a step, its catalog: decoded at once and in windows, and read through as `cairn` reads a step,
// with the digests that its bytes should have. The input is also the shards' content.
#include <algorithm>

#include "ckpt/model/layout.h"
#include "ckpt/model/piece.h"
#include "ckpt/step/step_reader.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace cairn {
namespace {

constexpr std::string_view kRun = "0123456789abcdef0123456789abcdef";
constexpr uint64_t kMaxBoxBytes = 1 << 16;
constexpr uint64_t kMaxSteps = 1 << 12;

Piece PieceOf(uint32_t tensor, uint32_t file, Box box, FlatRange range, uint64_t bytes) {
  return {.tensor = tensor,
          .file = file,
          .box = std::move(box),
          .range = range,
          .stored_bytes = bytes,
          .chunks = {Digest{}}};
}

Catalog Plain() {
  Catalog catalog;
  TensorEntry up;
  up.spec.name = "layers.0.mlp.up.weight";
  up.spec.shape = {4, 6};
  up.spec.cuts = {{.dim = 0}};
  up.spec.layer = 0;
  up.dtype = Dtype::kBF16;
  catalog.tensors = {up, up};
  catalog.tensors[1].role = Role::kMaster;
  catalog.tensors[1].dtype = Dtype::kF32;
  catalog.files = {"shard-00000.h5", "shard-00001.h5"};
  catalog.pieces = {
      PieceOf(0, 0, {{0, 0}, {2, 6}}, {0, 12}, 24), PieceOf(0, 1, {{2, 0}, {2, 6}}, {0, 12}, 24),
      PieceOf(1, 0, Box::Whole({4, 6}), {0, 13}, 52), PieceOf(1, 1, Box::Whole({4, 6}), {13, 24}, 44)};
  return catalog;
}

Catalog Packed() {
  Catalog catalog = Plain();
  Piece& low = catalog.pieces[3];
  low.codec = Codec::kMasterLow;
  low.stored_bytes /= 2;
  low.stored = {{0, static_cast<uint32_t>(low.stored_bytes), true, Digest{}, 0, 2}};
  low.exceptions = {{3, 0x3f80}, {10, 0xffff}};
  Piece& encoded = catalog.pieces[1];
  encoded.codec = Codec::kShuffleZstd;
  encoded.stored_bytes -= 3;
  encoded.stored = {{0, static_cast<uint32_t>(encoded.stored_bytes), true, Digest{}, 0, 0}};
  return catalog;
}

// An fp16 weight, half of it derived from its master.
Catalog Derived() {
  Catalog catalog = Plain();
  catalog.tensors[0].dtype = Dtype::kF16;
  Piece& derived = catalog.pieces[1];
  derived.codec = Codec::kDerived;
  derived.stored_bytes = 0;
  derived.stored = {{.encoded = true, .exceptions = 2}};
  derived.exceptions = {{3, 0x3c00}, {11, 0xffff}};
  return catalog;
}

// Pieces of several chunks, one with exceptions.
Catalog Large() {
  Catalog catalog = Packed();
  for (TensorEntry& tensor : catalog.tensors) tensor.spec.shape = {4, 1 << 20};
  const uint64_t volume = 4 << 20;
  Piece& low = catalog.pieces[3];
  low.box = Box::Whole({4, 1 << 20});
  low.range = {0, volume};
  low.stored_bytes = 2 * volume;
  low.chunks.assign(4, Digest{});
  low.stored.assign(4, {0, 2 << 20, true, Digest{}, 0, 2});
  for (uint32_t i = 0; i < 4; ++i) low.stored[i].first_exception = 2 * i;
  low.exceptions = {{3, 1}, {10, 2}, {3, 1}, {10, 2}, {3, 1}, {10, 2}, {3, 1}, {10, 2}};
  catalog.pieces = {PieceOf(0, 0, Box::Whole({4, 1 << 20}), {0, volume}, 2 * volume), low};
  catalog.pieces[0].chunks.assign(2, Digest{});
  return catalog;
}

// Experts on two ranks, and the moments of one half of each.
Catalog Experts() {
  Catalog catalog = Plain();
  for (TensorEntry& tensor : catalog.tensors) {
    tensor.spec.name = "layers.0.mlp.experts.up.weight";
    tensor.spec.shape = {4, 2, 3};
    tensor.spec.cuts = {{.axis = Axis::kEp, .dim = 0}, {.axis = Axis::kEtp, .dim = 1}};
    tensor.spec.of_experts = true;
  }
  catalog.pieces = {
      PieceOf(0, 0, {{0, 0, 0}, {2, 2, 3}}, {0, 12}, 24), PieceOf(0, 1, {{2, 0, 0}, {2, 2, 3}}, {0, 12}, 24),
      PieceOf(1, 0, {{0, 0, 0}, {4, 1, 3}}, {0, 12}, 48), PieceOf(1, 1, {{0, 1, 0}, {4, 1, 3}}, {0, 12}, 48)};
  return catalog;
}

// The exceptions of the first of four chunks take so much that the other three are missing, of which a
// reader that counts only chunks does not notice.
std::string ExceptionsTakeAll() {
  Catalog catalog = Large();
  Piece& low = catalog.pieces[1];
  low.exceptions.clear();
  for (uint32_t i = 0; i < 13; ++i) low.exceptions.push_back({i, 1});
  for (StoredChunk& chunk : low.stored) chunk.first_exception = chunk.exceptions = 0;
  low.stored[0].exceptions = 13;
  constexpr size_t kChunk = 8 + 4 + sizeof(Digest), kException = 4 + 2;
  const std::string encoded = EncodeCatalog(catalog);
  return encoded.substr(0, encoded.size() - 4 * (kChunk + 4) - 13 * kException + 4 * kChunk);
}

// Gives every chunk that lies in `shard` the digest that it has there, so that its decoder sees the bytes.
void SignChunks(std::string_view shard, Catalog& catalog) {
  const auto bytes = std::as_bytes(std::span(shard));
  for (Piece& piece : catalog.pieces) {
    const TensorEntry& tensor = catalog.tensors[piece.tensor];
    const uint64_t seed = PieceSeed(kRun, 1, tensor, piece.box, piece.range);
    const auto sign = [&](uint64_t at, uint64_t size, uint64_t chunk, Digest& digest) {
      if (at <= bytes.size() && size <= bytes.size() - at)
        digest = DigestOf(bytes.subspan(at, size), seed + chunk);
    };
    for (size_t i = 0; i < piece.stored.size(); ++i) {
      StoredChunk& chunk = piece.stored[i];
      sign(chunk.file_offset, chunk.bytes, i, chunk.encoded ? chunk.digest : piece.chunks[i]);
    }
    if (piece.codec == Codec::kNone && piece.chunks.size() == 1)
      sign(piece.file_offset, piece.stored_bytes, 0, piece.chunks[0]);
  }
}

void ReadStep(const Catalog& catalog, std::string_view encoded, std::string_view shard) {
  // A manifest is JSON, which other names are not in.
  for (const std::string& name : catalog.files)
    if (!std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~'; })) return;
  Manifest manifest{.run = std::string(kRun), .step = 1};
  MemoryFileSystem fs;
  for (const std::string& name : catalog.files)
    if (name != kIndexName && fs.files.try_emplace("step/" + name, shard).second)
      manifest.files.push_back({name, shard.size(), {}});
  fs.files["step/" + std::string(kIndexName)] = encoded;
  manifest.files.push_back({std::string(kIndexName), encoded.size(), {}});
  manifest.catalog_bytes = encoded.size();
  manifest.catalog_digest = DigestOf(encoded);
  const std::string text = EncodeManifest(manifest);
  fs.files["step/" + std::string(kManifestName)] = text;
  const auto reader = StepReader::Open(fs, "step");
  if (!reader.ok()) return FuzzCheck(!reader.status().message().empty());
  std::vector<std::byte> out;
  uint64_t left = kMaxSteps;
  for (uint32_t i = 0; i < catalog.tensors.size() && left > 0; ++i) {
    const TensorEntry& tensor = catalog.tensors[i];
    const auto [first, last] = (*reader)->catalog().PiecesOfTensor(i);
    if (tensor.bytes() > kMaxBoxBytes || last - first > left) continue;
    left -= last - first;
    out.resize(tensor.bytes());
    (void)(*reader)->ReadBox(i, Box::Whole(tensor.spec.shape), out);
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  return {EncodeCatalog({}),        EncodeCatalog(Plain()),   EncodeCatalog(Packed()), EncodeCatalog(Large()),
          EncodeCatalog(Derived()), EncodeCatalog(Experts()), ExceptionsTakeAll()};
}

std::vector<std::string> FuzzWords() {
  return {"CAIRNCAT",
          Little(2, 4),
          Little(1, 8),
          Little(INT64_MAX, 8),
          Little(UINT64_MAX, 8),
          Little(uint64_t{1} << 62, 8),
          Little(4 << 20, 8),
          Little(uint64_t{1} << 31 | 24, 4),
          Little(22, 2) + "layers.0.mlp.up.weight",
          Little(14, 2) + "shard-00001.h5",
          std::string(16, '\0'),
          std::string(3, '\1'),
          "\x28\xb5\x2f\xfd"};
}

}  // namespace cairn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  const std::string_view input = TextOf(data, size);
  auto catalog = DecodeCatalog(input);
  const auto packed = DecodeStepCatalog(ByteReader(input));
  FuzzCheck(catalog.ok() == packed.ok());
  if (!catalog.ok()) {
    FuzzCheck(catalog.status().message() == packed.status().message());
    return 0;
  }
  const std::string again = EncodeCatalog(*catalog);
  FuzzCheck(again.size() == EncodedCatalogBytes(*catalog));
  const auto decoded = DecodeCatalog(again);
  FuzzCheck(decoded.ok() && *decoded == *catalog);
  FuzzCheck(packed->pieces.size() == catalog->pieces.size());
  (void)CheckCoverage(*catalog);
  SignChunks(input, *catalog);
  ReadStep(*catalog, EncodeCatalog(*catalog), input);
  return 0;
}
