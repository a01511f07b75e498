#include "ckpt/step_reader.h"

#include <algorithm>
#include <cstring>

#include "ckpt/chunk_decoder.h"
#include "ckpt/layout.h"

namespace cairn {
namespace {

constexpr size_t kCachedChunks =
    16;  // 64 MiB: a block of rows meets as many pieces side by side as TP has ranks

// Where the last byte of a piece ends in its file.
uint64_t EndOf(const Piece& piece) {
  uint64_t end = piece.file_offset + piece.stored_bytes;
  for (const StoredChunk& chunk : piece.stored) end = std::max(end, chunk.file_offset + chunk.bytes);
  return end;
}

}  // namespace

Result<std::unique_ptr<StepReader>> StepReader::Open(FileSystem& fs, const std::string& directory) {
  std::unique_ptr<StepReader> reader(new StepReader(fs, directory));
  const std::string path = JoinPath(directory, kManifestName);
  Result<std::string> text = ReadSmallFile(fs, path, kMaxManifestBytes);
  if (!text.ok() && text.status().kind() == StatusKind::kNotFound)
    return NotFound("{}: no {}; this is not a committed Cairn step", directory, kManifestName);
  if (!text.ok()) return text.status();
  Result<Manifest> manifest = DecodeManifest(*text);
  if (!manifest.ok()) return manifest.status().WithContext(path);
  reader->manifest_ = std::move(manifest).value();
  CAIRN_RETURN_IF_ERROR(reader->ReadCatalog());
  return reader;
}

// Sizes are compared before anything is read, the catalog's digest before it is decoded.
Status StepReader::ReadCatalog() {
  for (const ManifestFile& file : manifest_.files) {
    const std::string path = JoinPath(directory_, file.name);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(path));
    if (info.bytes != file.bytes)
      return Corrupt("{} has {} bytes, its manifest says {}; it was truncated or replaced", path, info.bytes,
                     file.bytes);
  }
  const std::string path = JoinPath(directory_, kIndexName);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(path));
  if (manifest_.catalog_bytes > info.bytes || manifest_.catalog_offset > info.bytes - manifest_.catalog_bytes)
    return Corrupt("{}: the catalog lies behind the end of the file", path);
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs_.OpenForRead(path));
  std::string blob(manifest_.catalog_bytes, '\0');
  CAIRN_RETURN_IF_ERROR(file->ReadAt(manifest_.catalog_offset, std::as_writable_bytes(std::span(blob))));
  if (DigestOf(blob) != manifest_.catalog_digest)
    return Corrupt("{} at byte {}: the catalog does not match its digest", path, manifest_.catalog_offset);
  Result<Catalog> catalog = DecodeCatalog(blob);
  if (!catalog.ok()) return catalog.status().WithContext(path);
  catalog_ = std::move(catalog).value();
  for (const Piece& piece : catalog_.pieces) {
    const auto entry = std::ranges::find(manifest_.files, catalog_.files[piece.file], &ManifestFile::name);
    if (entry == manifest_.files.end() || EndOf(piece) > entry->bytes)
      return Corrupt("{}: tensor {} lies outside of {}", path, DisplayName(catalog_.tensors[piece.tensor]),
                     catalog_.files[piece.file]);
  }
  return OkStatus();
}

Result<File*> StepReader::Shard(uint32_t file) {
  auto& shard = shards_[file];
  if (!shard) {
    CAIRN_ASSIGN_OR_RETURN(shard, fs_.OpenForRead(JoinPath(directory_, catalog_.files[file])));
  }
  return shard.get();
}

Status StepReader::ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) {
  const auto [first, last] = catalog_.PiecesOfTensor(tensor);
  uint64_t found = 0;
  for (size_t i = first; i < last; ++i) {
    const Piece& piece = catalog_.pieces[i];
    if (!Intersect(piece.box, box) && box.rank() > 0) continue;
    for (const Segment& segment : Decompose(piece.box, piece.range)) {
      const std::optional<Box> common = Intersect(segment.box, box);
      if (!common) continue;
      found += common->Volume();
      CAIRN_RETURN_IF_ERROR(ReadPiecePart(i, segment, *common, box, out));
    }
  }
  if (found != box.Volume())
    return Corrupt("{}: tensor {} box {} is covered {} times over {} elements; run cairn verify --structure",
                   directory_, DisplayName(catalog_.tensors[tensor]), ToString(box), found, box.Volume());
  return OkStatus();
}

Status StepReader::ReadPiecePart(size_t piece, const Segment& segment, const Box& common, const Box& box,
                                 std::span<std::byte> out) {
  const uint64_t size = SizeOf(DtypeOf(catalog_.pieces[piece]));
  Status status;
  ForEachRun(common, segment.box, box, [&](uint64_t source, uint64_t target, uint64_t count) {
    if (!status.ok()) return;
    status = CopyRun(piece, (segment.begin + source) * size, out.subspan(target * size, count * size));
  });
  return status;
}

Status StepReader::CopyRun(size_t piece, uint64_t piece_offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const uint64_t index = piece_offset / kChunkBytes;
    const uint64_t in_chunk = piece_offset % kChunkBytes;
    const uint64_t chunk_bytes = ChunkBytes(piece, index);
    const size_t count = std::min<uint64_t>(out.size(), chunk_bytes - in_chunk);
    if (count == chunk_bytes) {
      CAIRN_RETURN_IF_ERROR(ReadChunk(piece, index, out.first(count)));
    } else {
      CAIRN_ASSIGN_OR_RETURN(const Chunk* chunk, CachedChunk(piece, index));
      std::memcpy(out.data(), chunk->bytes.data() + in_chunk, count);
    }
    piece_offset += count;
    out = out.subspan(count);
  }
  return OkStatus();
}

Dtype StepReader::DtypeOf(const Piece& piece) const { return catalog_.tensors[piece.tensor].dtype; }

uint64_t StepReader::ChunkBytes(size_t piece, uint64_t index) const {
  const Piece& p = catalog_.pieces[piece];
  return DecodedChunkBytes(DecodedBytes(p, DtypeOf(p)), index);
}

Status StepReader::ReadChunk(size_t index_of_piece, uint64_t index, std::span<std::byte> out) {
  const Piece& piece = catalog_.pieces[index_of_piece];
  const TensorEntry& tensor = catalog_.tensors[piece.tensor];
  CAIRN_ASSIGN_OR_RETURN(File * file, Shard(piece.file));
  const StoredChunk place = PlaceOf(piece, tensor.dtype, index);
  if (place.encoded) stored_.resize(kChunkBytes);
  const std::span stored = place.encoded ? std::span(stored_).first(place.bytes) : out;
  CAIRN_RETURN_IF_ERROR(file->ReadAt(place.file_offset, stored));
  bytes_read_ += stored.size();
  const uint64_t seed = PieceSeed(manifest_.run, manifest_.step, tensor, piece.box, piece.range) + index;
  const Status status = DecodeChunk(piece, tensor.dtype, index, seed, stored, out);
  if (!status.ok())
    return Corrupt("{} at byte {}: tensor {} {}; the file is damaged or belongs to another checkpoint",
                   file->path(), place.file_offset, DisplayName(tensor), status.message());
  return OkStatus();
}

Result<const StepReader::Chunk*> StepReader::CachedChunk(size_t piece, uint64_t index) {
  auto found =
      std::ranges::find_if(cache_, [&](const Chunk& c) { return c.piece == piece && c.index == index; });
  if (found == cache_.end()) {
    if (cache_.size() < kCachedChunks) cache_.emplace_back();
    found = std::prev(cache_.end());
    found->piece = SIZE_MAX;  // nothing, should the read fail
    found->bytes.resize(ChunkBytes(piece, index));
    CAIRN_RETURN_IF_ERROR(ReadChunk(piece, index, found->bytes));
    found->piece = piece;
    found->index = index;
  }
  cache_.splice(cache_.begin(), cache_, found);
  return &cache_.front();
}

}  // namespace cairn
