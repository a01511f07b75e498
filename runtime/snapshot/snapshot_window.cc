#include "runtime/snapshot/snapshot_window.h"

// libcairn_cuda.so shares no library with the program that loads it, so the short inputs come from the
// header.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "ckpt/io/file_system.h"

namespace cairn {
namespace {

static_assert(kSnapshotPageBytes == kPageBytes && kChunkBytes % kPageBytes == 0);

uint64_t WholePages(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

Digest Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest;
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

}  // namespace

Status CheckPieces(std::span<const SnapshotPiece> pieces, uint64_t arena_bytes) {
  uint64_t free_from = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SnapshotPiece& piece = pieces[i];
    const auto refuse = [&](const char* why) {
      return InvalidArgument("snapshot piece {}, {} bytes to arena offset {}: {}", i, piece.bytes,
                             piece.offset, why);
    };
    if (piece.bytes > 0 && piece.source == nullptr) return refuse("it has no source");
    if (piece.offset % kPageBytes != 0) return refuse("the offset is not a multiple of 4096");
    if (piece.offset < free_from) return refuse("it must come after the previous piece");
    if (piece.offset > arena_bytes || piece.bytes > arena_bytes - piece.offset ||
        WholePages(piece.bytes) > arena_bytes - piece.offset)
      return refuse(fmt::format("the arena has only {} bytes", arena_bytes).c_str());
    free_from = piece.offset + WholePages(piece.bytes);
  }
  return OkStatus();
}

WindowCutter::WindowCutter(std::span<const SnapshotPiece> pieces, uint64_t window_bytes)
    : pieces_(pieces), window_bytes_(window_bytes) {
  SkipEmpty();
}

void WindowCutter::SkipEmpty() {
  while (!done() && pieces_[piece_].bytes == 0) ++piece_;
}

SnapshotWindow WindowCutter::Next() {
  SnapshotWindow window;
  while (!done()) {
    const SnapshotPiece& piece = pieces_[piece_];
    const uint64_t begin = chunk_ * kChunkBytes, bytes = std::min(kChunkBytes, piece.bytes - begin);
    const uint64_t staged = window.bytes(), padded = WholePages(bytes), arena_offset = piece.offset + begin;
    if (staged + padded > window_bytes_) break;
    window.chunk_of_page.resize((staged + padded) / kPageBytes, static_cast<uint32_t>(window.chunks.size()));
    window.chunks.push_back({piece.source + begin, bytes, piece.seed + chunk_, staged});
    window.pieces.push_back(static_cast<uint32_t>(piece_));
    if (!window.runs.empty() && window.runs.back().arena_offset + window.runs.back().bytes == arena_offset)
      window.runs.back().bytes += padded;
    else
      window.runs.push_back({staged, arena_offset, padded});
    ++chunk_;
    if (begin + bytes == piece.bytes) {
      ++piece_;
      chunk_ = 0;
      SkipEmpty();
    }
  }
  return window;
}

void AppendDigests(const SnapshotWindow& window, std::span<const SnapshotPiece> pieces,
                   const uint64_t* computed, const std::byte* arena, SnapshotDigests& digests) {
  digests.resize(pieces.size());
  for (size_t i = 0; i < window.chunks.size(); ++i) {
    const SnapshotChunk& chunk = window.chunks[i];
    std::vector<Digest>& of_piece = digests[window.pieces[i]];
    const std::byte* copied = arena + pieces[window.pieces[i]].offset + of_piece.size() * kChunkBytes;
    of_piece.push_back(Canonical(chunk.bytes > xxh3::kShortBytes
                                     ? XXH128_hash_t{computed[2 * i], computed[2 * i + 1]}
                                     : XXH3_128bits_withSeed(copied, chunk.bytes, chunk.seed)));
  }
}

}  // namespace cairn
