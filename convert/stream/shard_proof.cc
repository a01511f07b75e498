// The chunks of all pieces are sorted by shard and offset, and neighbours are joined to one large read. Each
// slot has one read in flight: when it is done its chunks are checked, and the slot starts the next read.
// After an error all reads are awaited before the slots may be used again. A check is the chunk's digest and
// a sum of its elements at the place that the shard's plan gives them, so that right bytes of a wrong place
// are found too.

#include "convert/stream/shard_proof.h"

#include <algorithm>

#include "ckpt/io/page_cache.h"
#include "ckpt/step/chunk_decoder.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxReads = 4;  // in flight

}  // namespace

ShardProof::ShardProof(FileSystem& fs, const std::string& directory, const std::vector<TensorEntry>& tensors,
                       uint64_t max_memory)
    : fs_(fs),
      directory_(directory),
      tensors_(tensors),
      slots_(std::clamp<uint64_t>(max_memory / kExtentBytes, 1, kMaxReads)),
      queue_(fs.NewQueue({.depth = static_cast<int>(slots_.size())})) {}

Status ShardProof::Prove(const StageWriter& stage, std::span<const uint32_t> tensors, StepFingerprint& sums,
                         const std::function<void(uint64_t)>& advance) {
  chunks_ = ChunksOf(stage, tensors);
  next_ = 0;
  file_.reset();
  for (size_t i = 0; i < slots_.size(); ++i)
    if (const Status status = StartRead(stage, i); !status.ok()) return Drain(status);
  while (queue_->in_flight() > 0) {
    const IoQueue::Completion done = queue_->Wait();
    Status status = done.status;
    for (const ChunkRef& chunk : slots_[done.tag].chunks) {
      if (status.ok()) status = Check(stage, chunk, slots_[done.tag], sums);
      if (status.ok()) advance(chunk.bytes);
    }
    if (status.ok()) status = StartRead(stage, done.tag);
    if (!status.ok()) return Drain(status);
  }
  return OkStatus();
}

// Nothing may still be read into the slots when they are used again.
Status ShardProof::Drain(Status status) {
  while (queue_->in_flight() > 0) (void)queue_->Wait();
  return status;
}

std::vector<ShardProof::ChunkRef> ShardProof::ChunksOf(const StageWriter& stage,
                                                       std::span<const uint32_t> tensors) const {
  std::vector<ChunkRef> chunks;
  for (uint32_t tensor : tensors)
    for (const StageWriter::Target& target : stage.targets(tensor)) {
      const Piece& piece = stage.shard(target.shard).plan().piece(target.piece);
      for (uint64_t i = 0; i < piece.chunks.size(); ++i) {
        const ChunkPlace place = PlaceOfChunk(piece, i, SizeOf(tensors_[tensor].dtype));
        chunks.push_back({target.shard, place.offset, tensor, target.piece, i, place.bytes});
      }
    }
  std::ranges::sort(chunks, {}, [](const ChunkRef& c) { return std::pair(c.shard, c.offset); });
  return chunks;
}

// The next chunk, and those that lie behind it in the same file.
Status ShardProof::StartRead(const StageWriter& stage, size_t index) {
  if (next_ == chunks_.size()) return OkStatus();
  const size_t first = next_;
  const uint64_t begin = chunks_[first].offset;
  uint64_t end = begin + chunks_[first].bytes;
  for (++next_; next_ < chunks_.size(); ++next_) {
    const ChunkRef& chunk = chunks_[next_];
    if (chunk.shard != chunks_[first].shard || chunk.offset - end > kMaxGapBytes ||
        chunk.offset + chunk.bytes - begin > kExtentBytes)
      break;
    end = chunk.offset + chunk.bytes;
  }
  Slot& slot = slots_[index];
  CAIRN_ASSIGN_OR_RETURN(slot.file, FileOf(stage, chunks_[first].shard));
  if (!slot.memory) slot.memory = std::make_unique<WriteRing::Buffer>(kExtentBytes);
  slot.begin = begin;
  slot.chunks = std::span(chunks_).subspan(first, next_ - first);
  queue_->Read(*slot.file, begin, {slot.memory->data(), PageUp(end - begin)}, index);
  return OkStatus();
}

Result<std::shared_ptr<File>> ShardProof::FileOf(const StageWriter& stage, size_t shard) {
  if (!file_ || shard != file_shard_) {
    CAIRN_ASSIGN_OR_RETURN(
        file_, fs_.OpenForRead(JoinPath(directory_, stage.shard(shard).plan().name()), Direct::kAuto));
    file_shard_ = shard;
  }
  return file_;
}

Status ShardProof::Check(const StageWriter& stage, const ChunkRef& ref, const Slot& slot,
                         StepFingerprint& sums) const {
  const ShardPlan& plan = stage.shard(ref.shard).plan();
  const Piece& piece = plan.piece(ref.piece);
  const TensorEntry& entry = tensors_[ref.tensor];
  const std::span<const std::byte> bytes(slot.memory->data() + (ref.offset - slot.begin), ref.bytes);
  if (DigestOf(bytes, plan.ChunkSeed(ref.piece, ref.chunk)) != piece.chunks[ref.chunk])
    return Corrupt("{} at byte {}: tensor {} read back is not what was written; check the disk and try again",
                   slot.file->path(), ref.offset, DisplayName(entry));
  const uint64_t size = SizeOf(entry.dtype);
  const Box whole = Box::Whole(entry.spec.shape);
  for (const Segment& segment : Decompose(piece.box, PlaceOfChunk(piece, ref.chunk, size).elements))
    ForEachRun(segment.box, segment.box, whole, [&](uint64_t from, uint64_t to, uint64_t count) {
      sums.of(ref.tensor).Add(to, bytes.subspan((segment.begin + from) * size, count * size));
    });
  return OkStatus();
}

}  // namespace cairn
