// Which saves of this rank are compressed.
//
// `zstd`: all. `auto`: while that makes them durable sooner. The first save is written as it is and times the
// disk; a sample of the next snapshot then shows what the codec might make of it (ckpt/codec/codec_policy.h).
// What it really makes of it on cores that train meanwhile only a flush can tell: from the first compressed
// one on the two kinds are compared as they were measured. Each rank decides for its own shard.
#pragma once

#include <cstdint>
#include <functional>

#include "ckpt/codec/codec_policy.h"
#include "runtime/snapshot/snapshot.h"

namespace cairn {

enum class CodecMode { kNone, kAuto, kZstd };

class SaveCodec {
 public:
  // So many saves of one kind, and the other is looked at again: disks and machines change.
  static constexpr int kLookAgain = 64;

  SaveCodec(CodecMode mode, int threads) : mode_(mode), threads_(threads) {}

  // `sample` is called only where it decides: it costs time, and the snapshot must be complete for it.
  // Errors: those of `sample`.
  Result<bool> ShouldCompress(const std::function<Result<CodecSpeed>()>& sample) const;
  // A flush of so many bytes before any compression, digests and fsync included.
  void NoteFlush(bool compressed, uint64_t bytes, double seconds);

  CodecMode mode() const { return mode_; }
  int threads() const { return threads_; }

 private:
  const CodecMode mode_;
  const int threads_;
  double plain_bytes_per_second_ = 0;   // of the last such flush; 0: none yet
  double packed_bytes_per_second_ = 0;  // the same, of bytes before compression
  bool last_ = false;
  int alike_ = 0;  // flushes of the last kind in a row
};

// The codec on a few chunks of a snapshot, up to 32 MiB, once it is complete.
Result<CodecSpeed> SampleCodec(Snapshot& snapshot);

}  // namespace cairn
