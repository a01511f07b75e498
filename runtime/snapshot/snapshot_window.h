// Cuts a snapshot's pieces into windows that fit a slot of staging memory. Plain arithmetic, no CUDA.
#pragma once

#include <span>
#include <vector>

#include "runtime/snapshot/device_snapshot.h"
#include "runtime/snapshot/snapshot_core.h"

namespace cairn {

// The part that one slot carries from the sources to the arena.
struct SnapshotWindow {
  // Staged bytes that lie contiguously in the arena too, whole pages.
  struct Run {
    uint64_t staged = 0;
    uint64_t arena_offset = 0;
    uint64_t bytes = 0;
  };

  std::vector<SnapshotChunk> chunks;    // by `staged`, no gaps between their pages
  std::vector<uint32_t> pieces;         // of each chunk its piece
  std::vector<uint32_t> chunk_of_page;  // of each staged page the chunk that it belongs to
  std::vector<Run> runs;
  uint64_t bytes() const { return chunk_of_page.size() * kSnapshotPageBytes; }
};

// Errors: InvalidArgument naming the first piece that has no source, is off a page, out of order or beyond
// the arena.
Status CheckPieces(std::span<const SnapshotPiece> pieces, uint64_t arena_bytes);

class WindowCutter {
 public:
  // Requires pieces that CheckPieces passed, and window_bytes >= kChunkBytes.
  WindowCutter(std::span<const SnapshotPiece> pieces, uint64_t window_bytes);

  bool done() const { return piece_ == pieces_.size(); }
  // As many chunks as fit, at least one. Requires !done().
  SnapshotWindow Next();

 private:
  void SkipEmpty();

  std::span<const SnapshotPiece> pieces_;
  uint64_t window_bytes_;
  size_t piece_ = 0;
  uint64_t chunk_ = 0;  // of the piece: the next one
};

// Appends the digests of the window's chunks, which come in order, to those of their pieces. `computed` is
// SlotView::digests; short chunks are digested here, from the arena, which must hold the window by now.
void AppendDigests(const SnapshotWindow& window, std::span<const SnapshotPiece> pieces,
                   const uint64_t* computed, const std::byte* arena, SnapshotDigests& digests);

}  // namespace cairn
