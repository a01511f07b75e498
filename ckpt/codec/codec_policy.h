// Whether compressing pays: a sample is measured, and one comparison decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn {

// Sizes and times of the codec for some bytes, on one thread.
struct CodecSpeed {
  uint64_t bytes = 0;
  uint64_t stored_bytes = 0;  // chunks that do not pay count uncompressed
  double encode_seconds = 0;
  double decode_seconds = 0;
  CodecSpeed& operator+=(const CodecSpeed& other);
};

// Encodes and decodes `bytes` in chunks, each timed by itself. Aborts if a chunk does not decode to what was
// encoded: no figure describes wrong bytes.
CodecSpeed MeasureCodec(std::span<const std::byte> bytes, size_t element_bytes);

// A smaller gain counts as zero: it is within the measurement error, and it costs processor time.
inline constexpr double kLeastGain = 1.05;

// True if a flush takes less time compressed: while threads encode, the disk writes what is encoded, so
// the slower of the two sets the pace. `disk_bytes_per_second` is what the disk takes of uncompressed bytes,
// `threads` those that encode. Gains below kLeastGain count as none.
bool CompressionPays(double disk_bytes_per_second, const CodecSpeed& sample, int threads);

}  // namespace cairn
