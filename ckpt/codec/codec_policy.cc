#include "ckpt/codec/codec_policy.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ckpt/base/stopwatch.h"
#include "ckpt/codec/plane_codec.h"

namespace cairn {

CodecSpeed& CodecSpeed::operator+=(const CodecSpeed& other) {
  bytes += other.bytes;
  stored_bytes += other.stored_bytes;
  encode_seconds += other.encode_seconds;
  decode_seconds += other.decode_seconds;
  return *this;
}

CodecSpeed MeasureCodec(std::span<const std::byte> bytes, size_t element_bytes) {
  PlaneEncoder encoder;
  PlaneDecoder decoder;
  std::vector<std::byte> decoded(kMaxCodecChunkBytes);
  // The first use of zstd's memory costs more than its work; a thread that encodes pays for it once.
  const auto first = bytes.first(std::min(kMaxCodecChunkBytes, bytes.size()));
  if (const auto stored = encoder.Encode(first, element_bytes); !stored.empty())
    (void)decoder.Decode(stored, element_bytes, std::span(decoded).first(first.size()));
  CodecSpeed sum;
  for (size_t at = 0; at < bytes.size(); at += kMaxCodecChunkBytes) {
    const auto chunk = bytes.subspan(at, std::min(kMaxCodecChunkBytes, bytes.size() - at));
    const std::span back(decoded.data(), chunk.size());
    const Stopwatch encoding;
    const auto stored = encoder.Encode(chunk, element_bytes);
    const double encode_seconds = encoding.Seconds();
    const Stopwatch decoding;
    bool good = true;
    if (stored.empty())
      std::memcpy(back.data(), chunk.data(), chunk.size());
    else
      good = decoder.Decode(stored, element_bytes, back).ok();
    const double decode_seconds = decoding.Seconds();
    if (!good || std::memcmp(back.data(), chunk.data(), chunk.size()) != 0) {
      std::fprintf(stderr, "the codec lost a chunk of %zu bytes\n", chunk.size());
      std::abort();
    }
    sum += {chunk.size(), stored.empty() ? chunk.size() : stored.size(), encode_seconds, decode_seconds};
  }
  return sum;
}

bool CompressionPays(double disk_bytes_per_second, const CodecSpeed& sample, int threads) {
  if (sample.bytes == 0 || disk_bytes_per_second <= 0) return false;
  const double plain_seconds = sample.bytes / disk_bytes_per_second;
  const double packed_seconds =
      std::max(sample.stored_bytes / disk_bytes_per_second, sample.encode_seconds / threads);
  return plain_seconds > kLeastGain * packed_seconds;
}

}  // namespace cairn
