// Which saves of this rank are compressed.
//
// `zstd`: all. `auto`: while the disk is what a save waits for. The first save is written as it is and times
// the disk; a sample of every later snapshot then tells what the codec would make of it, and one comparison
// decides (ckpt/codec_policy.h). Each rank decides for its own shard.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/snapshot.h"

namespace cairn {

enum class CodecMode { kNone, kAuto, kZstd };

class SaveCodec {
 public:
  SaveCodec(CodecMode mode, int threads) : mode_(mode), threads_(threads) {}

  // Requires a complete snapshot. Encodes a sample of it in auto mode, up to 32 MiB.
  bool ShouldCompress(Snapshot& snapshot) const;
  // An uncompressed flush, digests and fsync included.
  void NoteFlush(uint64_t bytes, double seconds);

  CodecMode mode() const { return mode_; }
  int threads() const { return threads_; }

 private:
  const CodecMode mode_;
  const int threads_;
  double disk_bytes_per_second_ = 0;  // 0: not measured yet
};

}  // namespace cairn
