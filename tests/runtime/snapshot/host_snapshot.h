// The reference for snapshots off a GPU: sources in host memory, which Begin copies before it returns.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>

#include "ckpt/io/file_system.h"
#include "runtime/snapshot/device_snapshot.h"
#include "runtime/snapshot/snapshot_window.h"

namespace cairn {

// Chunk by chunk, so that the digest reads the copied bytes from the cache.
inline std::vector<Digest> CopyPiece(const SnapshotPiece& piece, std::byte* to) {
  std::vector<Digest> digests;
  for (uint64_t at = 0; at < piece.bytes; at += kChunkBytes) {
    const uint64_t bytes = std::min(kChunkBytes, piece.bytes - at);
    std::memcpy(to + at, piece.source + at, bytes);
    digests.push_back(DigestOf({to + at, bytes}, piece.seed + at / kChunkBytes));
  }
  std::memset(to + piece.bytes, 0, (kPageBytes - piece.bytes % kPageBytes) % kPageBytes);
  return digests;
}

class HostSnapshot final : public DeviceSnapshot {
 public:
  Status SetArena(std::span<std::byte> arena) override {
    arena_ = arena;
    return OkStatus();
  }

  Status Begin(std::vector<SnapshotPiece> pieces) override {
    if (digests_) return InvalidArgument("snapshot: nothing waited for the previous one");
    CAIRN_RETURN_IF_ERROR(CheckPieces(pieces, arena_.size()));
    digests_.emplace();
    for (const SnapshotPiece& piece : pieces)
      digests_->push_back(CopyPiece(piece, arena_.data() + piece.offset));
    return OkStatus();
  }

  Status FenceSources() override { return OkStatus(); }
  void WaitFor(uint64_t) override {}

  Result<SnapshotDigests> Wait() override {
    if (!digests_) return InvalidArgument("snapshot: none was started");
    SnapshotDigests digests = *std::move(digests_);
    digests_.reset();
    return digests;
  }

 private:
  std::span<std::byte> arena_;
  std::optional<SnapshotDigests> digests_;
};

inline std::unique_ptr<DeviceSnapshot> NewHostSnapshot() { return std::make_unique<HostSnapshot>(); }

}  // namespace cairn
