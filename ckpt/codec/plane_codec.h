// Lossless compression of chunks of tensors, nearly as fast as memory, as HDF5's shuffle filter followed by
// its registered zstd filter (32015) would leave them: any HDF5 program with that filter reads the result.
//
// A chunk is split into byte planes. In trained floats the low planes are noise and the high ones, sign and
// exponent, hold few bits per byte; so leading planes that are noise become raw blocks, the rest goes through
// zstd's Huffman coder without a search for matches, which finds none and costs most of the time. Data with
// runs (fresh moments, integers) takes zstd's ordinary path. Which it is, a sample of the chunk decides.
//
// The result is one standard zstd frame (RFC 8878) with its content size: header, raw blocks of ours, then
// the blocks of a frame that libzstd made of the other planes, without its header. Raw blocks leave the
// decoder's state as it is, so libzstd's blocks mean the same behind them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/codec/shuffle.h"

namespace cairn {

inline constexpr size_t kMaxCodecChunkBytes = 4 << 20;

// Working memory for one thread: about three chunks.
class PlaneEncoder {
 public:
  PlaneEncoder();
  ~PlaneEncoder();
  PlaneEncoder(PlaneEncoder&&) noexcept;

  // The encoded chunk, valid until the next call; empty if it does not pay, so that the chunk is best left
  // as it is. Requires chunk.size() <= kMaxCodecChunkBytes and 1 <= element_bytes <= kMaxElementBytes.
  std::span<const std::byte> Encode(std::span<const std::byte> chunk, size_t element_bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class PlaneDecoder {
 public:
  PlaneDecoder();
  ~PlaneDecoder();
  PlaneDecoder(PlaneDecoder&&) noexcept;

  // Fills all of `out`. `stored` may be anything: Corrupt if it is not exactly one frame of out.size()
  // bytes. Takes frames of any zstd encoder. Same requirements as of Encode().
  Status Decode(std::span<const std::byte> stored, size_t element_bytes, std::span<std::byte> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn
