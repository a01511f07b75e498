// Opening checks the manifest, the sizes of the files, and the catalog, which is decoded and digested in one
// pass through a window. ReadBox() cuts a box into runs of its pieces, and a run into chunks. A whole chunk
// is decoded into its final place. The rest of a chunk that is needed in part stays in a cache, for the next
// box. A joined chunk reads its other tensor by ReadBox() again, through the same cache; this nests only
// once, because that other tensor is never joined itself.

#include "ckpt/step/step_reader.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/step/find_step.h"

namespace cairn {
namespace {

constexpr size_t kCatalogWindowBytes = 256 << 10;  // of the catalog; stays in the second-level cache

// The type of the elements that a piece is joined with.
Dtype OtherDtype(Codec joined) { return joined == Codec::kDerived ? Dtype::kF32 : Dtype::kBF16; }

// The catalog's bytes, digested as they come. They are never in memory as a whole.
class CatalogSource final : public ByteSource {
 public:
  CatalogSource(File& file, uint64_t offset, uint64_t bytes) : file_(file), offset_(offset), left_(bytes) {}

  std::string_view More(std::string_view rest, uint64_t need) override {
    if (window_.size() < need + kCatalogWindowBytes) {
      std::string larger(need + kCatalogWindowBytes, '\0');
      std::ranges::copy(rest, larger.begin());
      window_.swap(larger);
    } else {
      std::ranges::copy(rest, window_.begin());  // forwards: `rest` is behind it
    }
    const size_t count = std::min<uint64_t>(left_, window_.size() - rest.size());
    const std::span fresh(window_.data() + rest.size(), count);
    if (status_.ok()) status_ = file_.ReadAt(offset_, std::as_writable_bytes(fresh));
    if (!status_.ok()) return {};
    hasher_.Update(std::as_bytes(fresh));
    offset_ += count;
    left_ -= count;
    return std::string_view(window_).substr(0, rest.size() + count);
  }

  // The digest of all bytes, including those that nobody asked for.
  Result<Digest> Finish() {
    while (left_ > 0 && status_.ok()) (void)More({}, 1);
    if (!status_.ok()) return status_;
    return hasher_.Finish();
  }

 private:
  File& file_;
  uint64_t offset_;
  uint64_t left_;
  std::string window_;
  Hasher hasher_;
  Status status_;
};

}  // namespace

Result<std::unique_ptr<StepReader>> StepReader::Open(FileSystem& fs, const std::string& step_dir) {
  return ReadStep(fs, step_dir, [&](const std::string& directory) -> Result<std::unique_ptr<StepReader>> {
    std::unique_ptr<StepReader> reader(new StepReader(fs, directory));
    Result<Manifest> manifest = ReadManifest(fs, directory);
    if (!manifest.ok() && manifest.status().kind() == StatusKind::kNotFound)
      return NotFound("{}: no {}; this is not a committed Cairn step", directory, kManifestName);
    if (!manifest.ok()) return manifest.status();
    reader->manifest_ = std::move(manifest).value();
    reader->files_.emplace(fs, reader->DirectoryOf(ShardName(0)));
    CAIRN_RETURN_IF_ERROR(reader->CheckFileSizes());
    CAIRN_RETURN_IF_ERROR(reader->ReadCatalog());
    return reader;
  });
}

Result<StepCatalog> CatalogIn(const Manifest& manifest, std::string_view index) {
  if (manifest.catalog_bytes > index.size() ||
      manifest.catalog_offset > index.size() - manifest.catalog_bytes)
    return Corrupt("{}: the catalog lies beyond the end of the file", kIndexName);
  return DecodeStepCatalog(ByteReader(index.substr(manifest.catalog_offset, manifest.catalog_bytes)));
}

Status StepReader::CheckFileSizes() const {
  for (const ManifestFile& file : manifest_.files) {
    const std::string path = JoinPath(DirectoryOf(file.name), file.name);
    const Result<FileInfo> found = fs_.Stat(path);
    if (!found.ok() && found.status().kind() == StatusKind::kNotFound && !manifest_.shards.empty())
      return NotFound("{}: missing, but {} is a virtual step and needs these shards", path, directory_);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, found);
    if (info.bytes != file.bytes)
      return Corrupt("{} has {} bytes, but its manifest says {}; it was truncated or replaced", path,
                     info.bytes, file.bytes);
  }
  return OkStatus();
}

// Keeps the catalog only if its digest matches. Reports a mismatch before a decoding error.
Status StepReader::ReadCatalog() {
  const std::string path = JoinPath(directory_, kIndexName);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs_.Stat(path));
  if (manifest_.catalog_bytes > info.bytes || manifest_.catalog_offset > info.bytes - manifest_.catalog_bytes)
    return Corrupt("{}: the catalog lies beyond the end of the file", path);
  CAIRN_ASSIGN_OR_RETURN(const auto file, fs_.OpenForRead(path));
  CatalogSource source(*file, manifest_.catalog_offset, manifest_.catalog_bytes);
  Result<StepCatalog> catalog = DecodeStepCatalog(ByteReader(source, manifest_.catalog_bytes));
  CAIRN_ASSIGN_OR_RETURN(const Digest digest, source.Finish());
  if (digest != manifest_.catalog_digest)
    return Corrupt("{} at byte {}: the catalog does not match its digest", path, manifest_.catalog_offset);
  if (!catalog.ok()) return catalog.status().WithContext(path);
  catalog_ = std::move(catalog).value();
  return CheckPlaces();
}

// Every piece lies in a file of the manifest.
Status StepReader::CheckPlaces() {
  std::unordered_map<std::string_view, uint64_t> bytes_of;
  for (const ManifestFile& file : manifest_.files) bytes_of.emplace(file.name, file.bytes);
  for (uint32_t file = 0; file < catalog_.files.size(); ++file) {
    const auto entry = bytes_of.find(catalog_.files[file]);
    const uint64_t bytes = file_bytes_.emplace_back(entry == bytes_of.end() ? 0 : entry->second);
    if (catalog_.file_ends[file] <= bytes) continue;
    for (size_t i = 0; i < catalog_.pieces.size(); ++i) {
      const Piece piece = catalog_.pieces[i];
      if (piece.file == file && EndOf(piece) > bytes)
        return Corrupt("{}: tensor {} lies outside of {}", JoinPath(directory_, kIndexName),
                       DisplayName(catalog_.tensors[piece.tensor]), catalog_.files[file]);
    }
  }
  return OkStatus();
}

void StepReader::Redescribe(Model model, const std::vector<std::string>& history) {
  manifest_.model = std::move(model);
  for (const std::string& line : history) manifest_.history.push_back(line);
}

Status StepReader::ReadBox(uint32_t tensor, const Box& box, std::span<std::byte> out) {
  const auto [first, last] = catalog_.PiecesOfTensor(tensor);
  uint64_t found = 0;
  for (size_t i = first; i < last; ++i) {
    if (!Intersect(catalog_.pieces.RegionOf(i).box, box)) continue;
    const NumberedPiece piece{catalog_.pieces[i], i};
    Status status;
    ForEachMeeting(piece.box, piece.range, box, [&](const Segment& segment, const Box& common) {
      found += common.Volume();
      if (status.ok()) status = ReadPiecePart(piece, segment, common, box, out);
    });
    CAIRN_RETURN_IF_ERROR(status);
  }
  if (found != box.Volume())
    return Corrupt("{}: tensor {} box {}: its pieces hold {} of {} elements; run cairn verify --structure",
                   directory_, DisplayName(catalog_.tensors[tensor]), ToString(box), found, box.Volume());
  return OkStatus();
}

Status StepReader::ReadPiecePart(const NumberedPiece& piece, const Segment& segment, const Box& common,
                                 const Box& box, std::span<std::byte> out) {
  const uint64_t size = ElementBytes(piece);
  Status status;
  ForEachRun(common, segment.box, box, [&](uint64_t source, uint64_t target, uint64_t count) {
    if (!status.ok()) return;
    status = CopyRun(piece, (segment.begin + source) * size, out.subspan(target * size, count * size));
  });
  return status;
}

Status StepReader::CopyRun(const NumberedPiece& piece, uint64_t piece_offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const uint64_t index = piece_offset / kChunkBytes;
    const uint64_t in_chunk = piece_offset % kChunkBytes;
    const uint64_t chunk_bytes = PlaceOf(piece, index).bytes;
    const size_t count = std::min<uint64_t>(out.size(), chunk_bytes - in_chunk);
    if (count == chunk_bytes) {
      CAIRN_RETURN_IF_ERROR(ReadChunk(piece, index, out.first(count)));
    } else {
      CAIRN_ASSIGN_OR_RETURN(Chunk* const chunk, CachedChunk(piece, index));
      std::memcpy(out.data(), chunk->bytes.data() + in_chunk, count);
      chunk->used += count;
      if (each_once_ && chunk->used >= chunk_bytes) DropChunk(cache_.begin());
    }
    piece_offset += count;
    out = out.subspan(count);
  }
  return OkStatus();
}

uint64_t StepReader::ElementBytes(const Piece& piece) const {
  return SizeOf(catalog_.tensors[piece.tensor].dtype);
}

ChunkPlace StepReader::PlaceOf(const Piece& piece, uint64_t chunk) const {
  return PlaceOfChunk(piece, chunk, ElementBytes(piece));
}

Status StepReader::ReadChunk(const NumberedPiece& piece, uint64_t index, std::span<std::byte> out) {
  const ChunkPlace place = PlaceOf(piece, index);
  if (piece.codec == Codec::kDerived) return DecodeStored(piece, index, {}, out);
  bytes_read_ += place.stored_bytes;
  if (ahead_) {
    CAIRN_ASSIGN_OR_RETURN(std::optional<ChunkAhead::Stored> stored, ahead_->Take(piece.number, index));
    if (stored) {
      const Status status = DecodeStored(piece, index, stored->bytes, out);
      if (ahead_) ahead_->Recycle(std::move(stored->memory));
      return status;
    }
  }
  CAIRN_ASSIGN_OR_RETURN(const auto file, files_->Get(catalog_.files[piece.file], Direct::kOff));
  if (!place.encoded) {
    CAIRN_RETURN_IF_ERROR(file->ReadAt(place.offset, out));
    return DecodeStored(piece, index, out, out);
  }
  stored_.resize(place.stored_bytes);
  CAIRN_RETURN_IF_ERROR(file->ReadAt(place.offset, stored_));
  const std::vector<std::byte> stored = std::move(stored_);  // a join reads other chunks meanwhile
  return DecodeStored(piece, index, stored, out);
}

Status StepReader::DecodeStored(const Piece& piece, uint64_t index, std::span<const std::byte> stored,
                                std::span<std::byte> out) {
  const ChunkDecoder decoder(files_->directory(), manifest_.run, manifest_.step, catalog_);
  if (stored.data() == out.data()) return decoder.Decode(piece, index, stored, {});
  if (IsJoined(piece.codec)) {
    const FlatRange elements = PlaceOf(piece, index).elements;
    std::vector<std::byte> other(elements.size() * SizeOf(OtherDtype(piece.codec)));
    CAIRN_RETURN_IF_ERROR(ReadOther(piece, elements, other));
    return decoder.Join(piece, index, stored, other, out);
  }
  return decoder.Decode(piece, index, stored, [&](uint64_t offset, std::span<const std::byte> bytes) {
    std::memcpy(out.data() + offset, bytes.data(), bytes.size());
  });
}

// A chunk that is not encoded stays where it was read to.
Status StepReader::FillChunk(const NumberedPiece& piece, Chunk& chunk) {
  const ChunkPlace place = PlaceOf(piece, chunk.index);
  if (ahead_ && !place.encoded) {
    CAIRN_ASSIGN_OR_RETURN(std::optional<ChunkAhead::Stored> stored, ahead_->Take(piece.number, chunk.index));
    if (stored) {
      bytes_read_ += place.stored_bytes;
      chunk.memory = std::move(stored->memory);
      chunk.read_ahead = true;
      chunk.bytes = stored->bytes;
      return DecodeStored(piece, chunk.index, chunk.bytes, chunk.bytes);
    }
  }
  chunk.memory = std::make_unique<PageBuffer>(place.bytes);
  chunk.bytes = {chunk.memory->data(), place.bytes};
  return ReadChunk(piece, chunk.index, chunk.bytes);
}

// Reads the bf16 weights of some elements of a split master, or the fp32 masters of a derived weight. Those
// are never joined themselves: only a master with a bf16 weight is split, and a bf16 weight is never derived.
Status StepReader::ReadOther(const Piece& joined, FlatRange elements, std::span<std::byte> out) {
  const TensorEntry& tensor = catalog_.tensors[joined.tensor];
  const Role role = joined.codec == Codec::kDerived ? Role::kMaster : Role::kWeight;
  const Result<uint32_t> found = catalog_.Find(tensor.spec.name, role);
  const Dtype dtype = OtherDtype(joined.codec);
  if (!found.ok() || catalog_.tensors[*found].dtype != dtype ||
      !(catalog_.tensors[*found].spec.shape == tensor.spec.shape))
    return Corrupt("{}: tensor {} must be joined with a {} {}, which the step does not have", directory_,
                   DisplayName(tensor), Name(dtype), Name(role));
  const uint64_t size = SizeOf(dtype);
  for (const Segment& segment : Decompose(joined.box, elements))
    CAIRN_RETURN_IF_ERROR(
        ReadBox(*found, segment.box, out.subspan(segment.begin * size, segment.box.Volume() * size)));
  return OkStatus();
}

// The loader's threads decode chunks one by one, so what must be joined is read here.
Status StepReader::Load(std::span<const ReadRequest> requests, const LoadOptions& options) {
  std::vector<ReadRequest> plain, joined;
  for (const ReadRequest& request : requests)
    (IsJoinedTensor(request.tensor) ? joined : plain).push_back(request);
  StepLoader loader(manifest_, catalog_, *files_, file_bytes_, options);
  const Status status = loader.Load(plain);
  bytes_read_ += loader.bytes_read();
  CAIRN_RETURN_IF_ERROR(status);
  for (const ReadRequest& request : joined) {
    CAIRN_RETURN_IF_ERROR(loader.CheckRequest(request));
    CAIRN_RETURN_IF_ERROR(ReadBox(request.tensor, request.box, request.out));
  }
  return OkStatus();
}

bool StepReader::JoinsTensors() const {
  for (uint32_t i = 0; i < catalog_.tensors.size(); ++i)
    if (IsJoinedTensor(i)) return true;
  return false;
}

// False for a number that is not a tensor's: the request is refused elsewhere.
bool StepReader::IsJoinedTensor(uint32_t tensor) const {
  if (tensor >= catalog_.tensors.size()) return false;
  const auto [first, last] = catalog_.PiecesOfTensor(tensor);
  bool joined = false;
  for (size_t i = first; i < last && !joined; ++i) joined = IsJoined(catalog_.pieces[i].codec);
  return joined;
}

void StepReader::SetCacheBytes(uint64_t bytes) {
  cache_bytes_ = kept_limit_ = std::max(bytes, kChunkBytes);
  while (kept_bytes_ > kept_limit_) DropChunk(std::prev(cache_.end()));
}

void StepReader::ReadAhead(BoxSequence next) {
  const uint64_t ahead_bytes = AheadBytes(cache_bytes_);
  SetCacheBytes(cache_bytes_);
  if (next && kept_limit_ > ahead_bytes + kChunkBytes) kept_limit_ -= ahead_bytes;
  each_once_ = next && !JoinsTensors();
  ahead_.reset();
  if (next)
    ahead_ = std::make_unique<ChunkAhead>(catalog_, *files_, file_bytes_, std::move(next), ahead_bytes);
}

void StepReader::DropChunk(std::list<Chunk>::iterator chunk) {
  kept_bytes_ -= chunk->memory->capacity;
  if (ahead_ && chunk->read_ahead) ahead_->Recycle(std::move(chunk->memory));
  cache_.erase(chunk);
}

Result<StepReader::Chunk*> StepReader::CachedChunk(const NumberedPiece& piece, uint64_t index) {
  auto found = std::ranges::find_if(
      cache_, [&](const Chunk& c) { return c.piece == piece.number && c.index == index; });
  if (found == cache_.end()) {
    const uint64_t bytes = PageUp(PlaceOf(piece, index).bytes);
    while (!cache_.empty() && kept_bytes_ + bytes > kept_limit_) DropChunk(std::prev(cache_.end()));
    Chunk chunk{.piece = piece.number, .index = index};
    CAIRN_RETURN_IF_ERROR(FillChunk(piece, chunk));  // a join reads through the same cache
    kept_bytes_ += chunk.memory->capacity;
    cache_.push_front(std::move(chunk));
    while (cache_.size() > 1 && kept_bytes_ > kept_limit_) DropChunk(std::prev(cache_.end()));
  } else {
    cache_.splice(cache_.begin(), cache_, found);
  }
  return &cache_.front();
}

}  // namespace cairn
