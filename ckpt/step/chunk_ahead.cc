// Each chunk is planned with the first box that needs it. A chunk that is most of its extent takes the
// extent's memory with it; a small one is copied, because it would keep a large memory alive.

#include "ckpt/step/chunk_ahead.h"

#include <algorithm>
#include <cstring>

namespace cairn {

ChunkAhead::ChunkAhead(const StepCatalog& catalog, OpenFiles& files, std::span<const uint64_t> file_bytes,
                       BoxSequence next, uint64_t max_bytes)
    : catalog_(catalog),
      ahead_(
          {files, catalog.files, file_bytes},
          [this, next = std::move(next)]() -> std::optional<std::vector<ExtentsAhead::Wanted>> {
            while (const std::optional<TensorBox> box = next())
              if (auto chunks = ChunksOf(*box); !chunks.empty()) return chunks;
            return std::nullopt;
          },
          max_bytes, /*horizon_bytes=*/UINT64_MAX) {}

// A box meets the chunks of a piece in ascending order, from one box to the next too.
std::vector<ExtentsAhead::Wanted> ChunkAhead::ChunksOf(const TensorBox& next) {
  std::vector<ExtentsAhead::Wanted> wanted;
  const auto [first, last] = catalog_.PiecesOfTensor(next.tensor);
  if (tensor_ != next.tensor) planned_chunks_.assign(last - first, 0);
  tensor_ = next.tensor;
  const uint64_t element_bytes = SizeOf(catalog_.tensors[next.tensor].dtype);
  for (size_t i = first; i < last; ++i) {
    const Piece piece = catalog_.pieces[i];
    if (piece.codec == Codec::kDerived) continue;  // it has no stored bytes
    const auto [begin, end] = CommonRun(piece.box, piece.range, next.box);
    if (begin == end) continue;
    const uint64_t end_chunk = ChunkCount((end - piece.range.begin) * element_bytes);
    uint64_t chunk =
        std::max(planned_chunks_[i - first], (begin - piece.range.begin) * element_bytes / kChunkBytes);
    for (; chunk < end_chunk; ++chunk) {
      const ChunkPlace place = PlaceOfChunk(piece, chunk, element_bytes);
      wanted.push_back({{i, chunk}, piece.file, place.offset, place.offset + place.stored_bytes});
    }
    planned_chunks_[i - first] = std::max(planned_chunks_[i - first], end_chunk);
  }
  return wanted;
}

Result<std::optional<ChunkAhead::Stored>> ChunkAhead::Take(size_t piece, uint64_t chunk) {
  CAIRN_ASSIGN_OR_RETURN(std::optional<ExtentsAhead::Taken> taken, ahead_.Take({piece, chunk}));
  if (!taken) return std::optional<Stored>();
  if (taken->memory && taken->bytes.size() >= taken->memory->capacity / 2)
    return std::optional(Stored{std::move(taken->memory), taken->bytes});
  Stored stored{ahead_.NewBuffer(taken->bytes.size()), {}};
  stored.bytes = {stored.memory->data(), taken->bytes.size()};
  std::memcpy(stored.bytes.data(), taken->bytes.data(), taken->bytes.size());
  ahead_.Recycle(std::move(taken->memory));
  return std::optional(std::move(stored));
}

}  // namespace cairn
