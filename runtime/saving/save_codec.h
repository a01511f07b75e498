// Decides which saves of this rank are compressed.
//
// `zstd`: all. `auto`: those that compression makes durable sooner. The first save is written uncompressed
// and times the disk; a sample of the next snapshot then estimates the codec (ckpt/codec/codec_policy.h).
// Only a flush shows its real speed on cores that are training. From the first compressed flush on, the
// measured speeds of both kinds are compared. Each rank decides for its own shard.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ckpt/codec/codec_policy.h"
#include "runtime/snapshot/snapshot.h"

namespace cairn {

class SaveCodec {
 public:
  // After this many saves of one kind the other is tried again: disks and machines change.
  static constexpr int kLookAgain = 64;

  // `mode`: none, zstd or auto.
  SaveCodec(std::string mode, int threads) : mode_(std::move(mode)), threads_(threads) {}

  // `sample` is called only if its result decides: it costs time, and the snapshot must be complete. Errors:
  // those of `sample`.
  Result<bool> ShouldCompress(const std::function<Result<CodecSpeed>()>& sample) const;
  // Reports a flush of `bytes` before compression, including digests and fsync.
  void NoteFlush(bool compressed, uint64_t bytes, double seconds);

 private:
  const std::string mode_;
  const int threads_;
  double plain_bytes_per_second_ = 0;   // of the last such flush; 0: none yet
  double packed_bytes_per_second_ = 0;  // the same, of bytes before compression
  bool last_ = false;
  int alike_ = 0;  // flushes of the last kind in a row
};

// Runs the codec on a few chunks of a snapshot, up to 32 MiB, once it is complete.
Result<CodecSpeed> SampleCodec(Snapshot& snapshot);

}  // namespace cairn
