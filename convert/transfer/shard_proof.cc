// The chunks of all pieces are sorted by shard and offset, and neighbours are joined to one large read past
// the page cache. The chunks of a finished read are checked before the next one starts, so memory is bounded
// by what is in flight. After an error no more reads start, and those in flight are awaited. A check is the
// chunk's digest and a sum of its elements at the place that the shard's plan gives them: it finds right
// bytes in a wrong place, too.

#include "convert/transfer/shard_proof.h"

#include <algorithm>

#include "ckpt/step/chunk_decoder.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxReads = 4;  // in flight

}  // namespace

// Keeps the descriptor of one shard: the proof of a stage reads its shards one after the other.
ShardProof::ShardProof(FileSystem& fs, const std::string& directory, const std::vector<TensorEntry>& tensors,
                       uint64_t max_memory)
    : tensors_(tensors),
      files_(fs, directory, /*limit=*/1),
      reader_(files_,
              {.depth = static_cast<int>(std::clamp<uint64_t>(max_memory / kExtentBytes, 1, kMaxReads)),
               .look_in_cache = false}) {}

Status ShardProof::Prove(const StageWriter& stage, std::span<const uint32_t> tensors, StepFingerprint& sums,
                         const std::function<void(uint64_t)>& advance) {
  const std::vector<ChunkRef> chunks = ChunksOf(stage, tensors);
  const std::vector<Neighbours> extents = JoinedOf(chunks);
  Status status;
  for (size_t next = 0;;) {
    for (; status.ok() && next < extents.size() && !reader_.full(); ++next) {
      const ShardPlan& plan = stage.shard(extents[next].front().shard).plan();
      reader_.Start({.file = plan.name(),
                     .begin = extents[next].front().offset,
                     .end = extents[next].back().offset + extents[next].back().bytes,
                     .file_bytes = plan.file_bytes(),
                     .tag = next});
    }
    if (reader_.waiting() == 0) return status;
    ExtentReader::Finished done = reader_.Wait();
    if (status.ok()) status = done.status;
    const Neighbours& extent = extents[done.tag];
    for (const ChunkRef& chunk : extent) {
      if (!status.ok()) break;
      status =
          Check(stage, chunk, done.bytes.subspan(chunk.offset - extent.front().offset, chunk.bytes), sums);
      if (status.ok()) advance(chunk.bytes);
    }
    reader_.Recycle(std::move(done.memory));
  }
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

std::vector<ShardProof::Neighbours> ShardProof::JoinedOf(std::span<const ChunkRef> chunks) {
  std::vector<Neighbours> extents;
  for (size_t first = 0, last = 0; last < chunks.size(); first = last) {
    const auto joins = [&](const ChunkRef& before, const ChunkRef& next) {
      return next.shard == before.shard && JoinsExtent(chunks[first].offset, before.offset + before.bytes,
                                                       next.offset, next.offset + next.bytes);
    };
    do ++last;
    while (last < chunks.size() && joins(chunks[last - 1], chunks[last]));
    extents.push_back(chunks.subspan(first, last - first));
  }
  return extents;
}

Status ShardProof::Check(const StageWriter& stage, const ChunkRef& ref, std::span<const std::byte> bytes,
                         StepFingerprint& sums) const {
  const ShardPlan& plan = stage.shard(ref.shard).plan();
  const Piece& piece = plan.piece(ref.piece);
  const TensorEntry& entry = tensors_[ref.tensor];
  if (DigestOf(bytes, plan.ChunkSeed(ref.piece, ref.chunk)) != piece.chunks[ref.chunk])
    return Corrupt("{} at byte {}: tensor {} read back is not what was written; check the disk and try again",
                   JoinPath(files_.directory(), plan.name()), ref.offset, DisplayName(entry));
  const uint64_t size = SizeOf(entry.dtype);
  const Box whole = Box::Whole(entry.spec.shape);
  for (const Segment& segment : Decompose(piece.box, PlaceOfChunk(piece, ref.chunk, size).elements))
    ForEachRun(segment.box, segment.box, whole, [&](uint64_t from, uint64_t to, uint64_t count) {
      sums.of(ref.tensor).Add(to, bytes.subspan((segment.begin + from) * size, count * size));
    });
  return OkStatus();
}

}  // namespace cairn
