// `wanted_` has the chunks of the next boxes in order of first use, each once. A read takes the first of
// them, and all later ones that lie close behind it in the same file. The memory of a read is free again when
// all of its chunks were taken. Therefore a chunk that is asked for, but found no room, is read at once and
// beyond the limit: waiting for room could wait for chunks that are asked for only later.

#include "ckpt/step/chunk_ahead.h"

#include <algorithm>
#include <cstring>

#include "ckpt/io/page_cache.h"

namespace cairn {
namespace {

constexpr int kReadsInFlight = 4;
constexpr size_t kHorizon = 256;  // chunks among which neighbours are looked for

}  // namespace

ChunkAhead::ChunkAhead(const StepCatalog& catalog, OpenFiles& files, BoxSequence next, uint64_t max_bytes)
    : catalog_(catalog),
      files_(files),
      next_(std::move(next)),
      max_extents_(std::max<uint64_t>(1, max_bytes / kExtentBytes)),
      queue_(files.file_system().NewQueue({.depth = kReadsInFlight})) {}

void ChunkAhead::PlanMore() {
  while (next_ && wanted_.size() < kHorizon) {
    const std::optional<TensorBox> box = next_();
    if (!box) next_ = {};
    if (box) PlanBox(*box);
  }
}

// A box meets the chunks of a piece in ascending order, from one box to the next too.
void ChunkAhead::PlanBox(const TensorBox& next) {
  const auto [first, last] = catalog_.PiecesOfTensor(next.tensor);
  if (tensor_ != next.tensor) planned_chunks_.assign(last - first, 0);
  tensor_ = next.tensor;
  const uint64_t element_bytes = SizeOf(catalog_.tensors[next.tensor].dtype);
  for (size_t i = first; i < last; ++i) {
    const Piece piece = catalog_.pieces[i];
    const std::optional<Box> common = Intersect(piece.box, next.box);
    if (!common || piece.codec == Codec::kDerived) continue;  // of which nothing is stored
    const uint64_t at = FlatIndex(piece.box, common->offset);
    const uint64_t begin = std::max(at, piece.range.begin);
    const uint64_t end = std::min(at + common->Volume(), piece.range.end);
    if (begin >= end) continue;
    const uint64_t end_chunk = ChunkCount((end - piece.range.begin) * element_bytes);
    uint64_t chunk =
        std::max(planned_chunks_[i - first], (begin - piece.range.begin) * element_bytes / kChunkBytes);
    for (; chunk < end_chunk; ++chunk) {
      const ChunkPlace place = PlaceOfChunk(piece, chunk, element_bytes);
      wanted_.push_back({{i, chunk}, piece.file, place.offset, place.offset + place.stored_bytes});
    }
    planned_chunks_[i - first] = std::max(planned_chunks_[i - first], end_chunk);
  }
}

void ChunkAhead::StartReads() {
  PlanMore();
  while (!wanted_.empty() && extents_.size() < max_extents_ && queue_->in_flight() < queue_->depth()) {
    StartRead();
    PlanMore();
  }
}

// The first chunk wanted, and those after it that lie behind it in the same file.
void ChunkAhead::StartRead() {
  std::vector<Wanted> together{wanted_.front()};
  wanted_.pop_front();
  for (auto next = wanted_.begin(); next != wanted_.end();) {
    const Wanted& last = together.back();
    const bool joins = next->file == last.file && next->begin >= last.end &&
                       next->begin - last.end <= kMaxGapBytes &&
                       next->end - together.front().begin <= kExtentBytes;
    if (joins) together.push_back(*next);
    next = joins ? wanted_.erase(next) : std::next(next);
  }
  uint64_t begin = together.front().begin, end = together.back().end;
  const auto extent = extents_.emplace(extents_.end());
  extent->left = together.size();
  Result<std::shared_ptr<File>> file = FileOf(together.front().file, begin, end - begin);
  if (file.ok()) extent->file = *file;
  if (file.ok() && extent->file->direct()) begin = PageDown(begin), end = PageUp(end);
  extent->begin = begin;
  for (const Wanted& chunk : together)
    places_.emplace(chunk.id, Place{extent, chunk.begin - begin, chunk.end - chunk.begin});
  extent->memory = NewBuffer(end - begin);
  extent->done = !file.ok();
  extent->status = file.status();
  if (file.ok())
    queue_->Read(*extent->file, begin, {extent->memory->data(), end - begin},
                 reinterpret_cast<uintptr_t>(&*extent));
}

Result<std::shared_ptr<File>> ChunkAhead::FileOf(uint32_t file, uint64_t begin, uint64_t bytes) {
  const std::string& name = catalog_.files[file];
  CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<File> buffered, files_.Get(name, Direct::kOff));
  const std::optional<uint64_t> cached = CachedBytes(*buffered, begin, bytes);
  if (!cached || *cached >= bytes / 2) return buffered;
  // The last page of a file that does not end with a page cannot be read past the cache.
  const bool whole_pages = catalog_.file_ends[file] >= PageUp(begin + bytes);
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, whole_pages ? Result<FileInfo>(FileInfo{.bytes = UINT64_MAX})
                                                          : files_.file_system().Stat(buffered->path()));
  if (PageUp(begin + bytes) > info.bytes) return buffered;
  return files_.Get(name, Direct::kAuto);
}

// Small chunks have memory of their own size, so that what is kept of them is counted for what it is.
ChunkAhead::Buffer ChunkAhead::NewBuffer(uint64_t bytes) {
  if (bytes <= kExtentBytes / 2 || bytes > kExtentBytes) return std::make_unique<WriteRing::Buffer>(bytes);
  if (free_.empty()) return std::make_unique<WriteRing::Buffer>(kExtentBytes);
  Buffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

void ChunkAhead::Recycle(Buffer buffer) {
  if (buffer->capacity == kExtentBytes) free_.push_back(std::move(buffer));
}

Result<std::optional<ChunkAhead::Stored>> ChunkAhead::Take(size_t piece, uint64_t chunk) {
  StartReads();
  auto found = places_.find({piece, chunk});
  while (found == places_.end() && !wanted_.empty()) {  // it is wanted next, but there was no room
    const auto wanted = std::ranges::find(wanted_, ChunkId{piece, chunk}, &Wanted::id);
    if (wanted == wanted_.end()) break;
    std::rotate(wanted_.begin(), wanted, wanted + 1);
    if (queue_->in_flight() == queue_->depth()) {
      const IoQueue::Completion done = queue_->Wait();
      auto& extent = *reinterpret_cast<Extent*>(done.tag);
      extent.done = true, extent.status = done.status;
    }
    StartRead();
    found = places_.find({piece, chunk});
  }
  if (found == places_.end()) return std::optional<Stored>();
  const Place place = found->second;
  places_.erase(found);
  while (!place.extent->done) {
    const IoQueue::Completion done = queue_->Wait();
    auto& extent = *reinterpret_cast<Extent*>(done.tag);
    extent.done = true, extent.status = done.status;
    StartReads();  // first, so that the disk is not kept waiting
  }
  const Status status = place.extent->status;
  Stored stored = Deliver(place);
  StartReads();
  if (!status.ok()) return status;
  return std::optional(std::move(stored));
}

// A chunk that is most of its extent takes its memory along, a small one gets its own.
ChunkAhead::Stored ChunkAhead::Deliver(const Place& place) {
  Stored stored;
  const bool last = --place.extent->left == 0;
  if (last && place.bytes > kExtentBytes / 2) {
    stored.memory = std::move(place.extent->memory);
    stored.bytes = {stored.memory->data() + place.offset, place.bytes};
  } else {
    stored.memory = NewBuffer(place.bytes);
    stored.bytes = {stored.memory->data(), place.bytes};
    std::memcpy(stored.bytes.data(), place.extent->memory->data() + place.offset, place.bytes);
    if (last) Recycle(std::move(place.extent->memory));
  }
  if (last) extents_.erase(place.extent);
  return stored;
}

}  // namespace cairn
