#include "ckpt/step_reader.h"

#include <algorithm>
#include <cstring>

#include "ckpt/layout.h"

namespace cairn {
namespace {

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
  std::vector<uint64_t> file_bytes;  // of each file of the catalog; 0: the manifest has none of that name
  for (const std::string& name : catalog_.files) {
    const auto entry = std::ranges::find(manifest_.files, name, &ManifestFile::name);
    file_bytes.push_back(entry == manifest_.files.end() ? 0 : entry->bytes);
  }
  for (const Piece& piece : catalog_.pieces) {
    if (EndOf(piece) > file_bytes[piece.file])
      return Corrupt("{}: tensor {} lies outside of {}", path, DisplayName(catalog_.tensors[piece.tensor]),
                     catalog_.files[piece.file]);
  }
  return OkStatus();
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
  const uint64_t size = SizeOf(catalog_.tensors[catalog_.pieces[piece].tensor].dtype);
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
    const uint64_t chunk_bytes = PlaceOf(piece, index).bytes;
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

ChunkPlace StepReader::PlaceOf(size_t piece, uint64_t chunk) const {
  const Piece& p = catalog_.pieces[piece];
  return PlaceOfChunk(p, chunk, SizeOf(catalog_.tensors[p.tensor].dtype));
}

Status StepReader::ReadChunk(size_t index_of_piece, uint64_t index, std::span<std::byte> out) {
  const Piece& piece = catalog_.pieces[index_of_piece];
  const ChunkPlace place = PlaceOf(index_of_piece, index);
  const ChunkDecoder decoder(directory_, manifest_.run, manifest_.step, catalog_);
  CAIRN_ASSIGN_OR_RETURN(const auto file, files_.Get(catalog_.files[piece.file], Direct::kOff));
  if (place.encoded) stored_.resize(place.stored_bytes);
  const std::span<std::byte> stored = place.encoded ? stored_ : out;
  CAIRN_RETURN_IF_ERROR(file->ReadAt(place.offset, stored));
  bytes_read_ += place.stored_bytes;
  if (!place.encoded) return decoder.Decode(piece, index, stored, {});
  if (piece.codec == Codec::kMasterLow) {
    std::vector<std::byte> weight(place.bytes / 2);
    const std::vector<std::byte> low = std::move(stored_);  // reading weights needs the buffer
    CAIRN_RETURN_IF_ERROR(ReadWeights(piece, place.elements, weight));
    return decoder.Join(piece, index, low, weight, out);
  }
  return decoder.Decode(piece, index, stored, [&](uint64_t offset, std::span<const std::byte> bytes) {
    std::memcpy(out.data() + offset, bytes.data(), bytes.size());
  });
}

// The bf16 weights of some elements of a master's box.
Status StepReader::ReadWeights(const Piece& master, FlatRange elements, std::span<std::byte> out) {
  if (!lookup_) lookup_.emplace(catalog_);
  const std::string& name = catalog_.tensors[master.tensor].spec.name;
  CAIRN_ASSIGN_OR_RETURN(const uint32_t tensor, lookup_->Find(name, Role::kWeight));
  const TensorEntry& weight = catalog_.tensors[tensor];
  if (weight.dtype != Dtype::kBF16 || !(weight.spec.shape == catalog_.tensors[master.tensor].spec.shape))
    return Corrupt("{}: the master of tensor {} was split from a weight that is not here", directory_, name);
  for (const Segment& segment : Decompose(master.box, elements))
    CAIRN_RETURN_IF_ERROR(
        ReadBox(tensor, segment.box, out.subspan(segment.begin * 2, segment.box.Volume() * 2)));
  return OkStatus();
}

// The loader's threads decode chunks one by one, so masters that must be joined with weights are read here.
Status StepReader::Load(std::span<const ReadRequest> requests, const LoadOptions& options) {
  std::vector<ReadRequest> plain, split;
  for (const ReadRequest& request : requests) (IsSplit(request.tensor) ? split : plain).push_back(request);
  StepLoader loader(manifest_, catalog_, files_, options);
  const Status status = loader.Load(plain);
  bytes_read_ += loader.bytes_read();
  CAIRN_RETURN_IF_ERROR(status);
  for (const auto& [tensor, box, out] : split) {
    if (!Contains(Box::Whole(catalog_.tensors[tensor].spec.shape), box) ||
        out.size() != box.Volume() * SizeOf(catalog_.tensors[tensor].dtype))
      return InvalidArgument("tensor {}: cannot read box {} into {} bytes",
                             DisplayName(catalog_.tensors[tensor]), ToString(box), out.size());
    CAIRN_RETURN_IF_ERROR(ReadBox(tensor, box, out));
  }
  return OkStatus();
}

bool StepReader::IsSplit(uint32_t tensor) const {
  const auto [first, last] = catalog_.PiecesOfTensor(tensor);
  return std::any_of(catalog_.pieces.begin() + first, catalog_.pieces.begin() + last,
                     [](const Piece& piece) { return piece.codec == Codec::kMasterLow; });
}

void StepReader::SetCacheBytes(uint64_t bytes) {
  cached_chunks_ = std::max<size_t>(1, bytes / kChunkBytes);
  if (cache_.size() > cached_chunks_) cache_.resize(cached_chunks_);
}

Result<const StepReader::Chunk*> StepReader::CachedChunk(size_t piece, uint64_t index) {
  auto found =
      std::ranges::find_if(cache_, [&](const Chunk& c) { return c.piece == piece && c.index == index; });
  if (found == cache_.end()) {
    // Out of the list while it is read: a split master reads weights through the same cache.
    std::list<Chunk> fresh;
    if (cache_.size() < cached_chunks_)
      fresh.emplace_back();
    else
      fresh.splice(fresh.begin(), cache_, std::prev(cache_.end()));
    Chunk& chunk = fresh.front();
    chunk.bytes.resize(PlaceOf(piece, index).bytes);
    CAIRN_RETURN_IF_ERROR(ReadChunk(piece, index, chunk.bytes));
    chunk.piece = piece;
    chunk.index = index;
    cache_.splice(cache_.begin(), fresh);
    if (cache_.size() > cached_chunks_) cache_.pop_back();
  } else {
    cache_.splice(cache_.begin(), cache_, found);
  }
  return &cache_.front();
}

}  // namespace cairn
