// The sample that decides, the frame, the encoder, the decoder. Raw planes are split straight to their place
// in the output. libzstd's own frame of the other planes follows them, and loses its header to become their
// continuation. The decoder knows nothing of this: it decodes any single frame and joins the planes.

#include "ckpt/codec/plane_codec.h"

#define ZSTD_STATIC_LINKING_ONLY  // for ZSTD_compressSequences and literal compression
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <numbers>

namespace cairn {
namespace {

constexpr size_t kBlockBytes = ZSTD_BLOCKSIZE_MAX;  // 128 KiB
constexpr size_t kBlockHeaderBytes = 3;
constexpr size_t kFrameHeaderBytes = 9;
constexpr int kLevel = 1;

// --- The sample that decides ---

constexpr size_t kSampleBytes = 256, kSamples = 64;  // 16 KiB of a chunk
constexpr double kNoiseBits = 7.85;  // entropy per byte; above it Huffman would save less than 2 %
constexpr size_t kRunFraction = 16;  // matches pay if one in this many elements repeats its neighbour
constexpr size_t kMinPayback = 64;   // stored as it is unless one byte in this many is saved

struct Outlook {
  size_t noise_planes;  // leading ones
  bool has_runs;
};

// The entropy of the data that the sample was drawn from: a sample's own is too low by about half a bit for
// each value seen (Miller and Madow), which matters if a chunk is small.
double BitsPerByte(const std::array<uint32_t, 256>& counts, size_t total) {
  double bits = -0.5 / std::numbers::ln2;
  for (const uint32_t count : counts)
    if (count > 0) bits += count * std::log2(static_cast<double>(total) / count) + 0.5 / std::numbers::ln2;
  return bits / total;
}

Outlook Sample(std::span<const std::byte> chunk, size_t element_bytes) {
  std::array<std::array<uint32_t, 256>, kMaxElementBytes> counts{};
  const size_t elements = chunk.size() / element_bytes;
  const size_t window = std::min(elements, kSampleBytes / element_bytes);
  const size_t stride = std::max(window, elements / kSamples);
  size_t seen = 0, repeats = 0;
  for (size_t begin = 0; begin + window <= elements; begin += stride)
    for (size_t i = begin; i < begin + window; ++i, ++seen) {
      const std::byte* element = chunk.data() + i * element_bytes;
      for (size_t b = 0; b < element_bytes; ++b) ++counts[b][static_cast<uint8_t>(element[b])];
      repeats += i > begin && std::memcmp(element, element - element_bytes, element_bytes) == 0;
    }
  size_t noise = 0;
  while (noise < element_bytes && BitsPerByte(counts[noise], seen) > kNoiseBits) ++noise;
  // Single bytes repeat by chance in the narrow distributions of fp8, so a run needs more repetitions.
  const size_t fraction = element_bytes == 1 ? kRunFraction / 4 : kRunFraction;
  return {noise, repeats * fraction > seen};
}

// --- The frame ---

// Magic; single segment, content size in 4 bytes; no checksum, no dictionary.
void PutFrameHeader(uint32_t content_bytes, std::byte* out) {
  const uint32_t magic = ZSTD_MAGICNUMBER;
  std::memcpy(out, &magic, 4);
  out[4] = std::byte{0xa0};
  std::memcpy(out + 5, &content_bytes, 4);
}

void PutRawBlockHeader(size_t bytes, std::byte* out) {
  const auto header = static_cast<uint32_t>(bytes << 3);  // type 0, not the last
  std::memcpy(out, &header, kBlockHeaderBytes);
}

size_t RawBlocksBytes(size_t bytes) {
  return bytes + (bytes + kBlockBytes - 1) / kBlockBytes * kBlockHeaderBytes;
}

// Room for the worst case: the frame of all planes as libzstd bounds it, plus raw blocks.
constexpr size_t kOutBytes = ZSTD_COMPRESSBOUND(kMaxCodecChunkBytes) + kFrameHeaderBytes +
                             (kMaxCodecChunkBytes / kBlockBytes + kMaxElementBytes) * kBlockHeaderBytes;

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

}  // namespace

struct PlaneEncoder::State {
  std::unique_ptr<ZSTD_CCtx, FreeContext> context{ZSTD_createCCtx()};
  std::vector<std::byte> planes = std::vector<std::byte>(kMaxCodecChunkBytes);  // those that go to libzstd
  std::vector<std::byte> out = std::vector<std::byte>(kOutBytes);

  // The leading planes become raw blocks at `raw`, the others and the tail go to `planes`.
  void Split(std::span<const std::byte> chunk, size_t element_bytes, size_t raw_planes, std::byte* raw) {
    const size_t elements = chunk.size() / element_bytes;
    std::array<std::byte*, kMaxElementBytes> target;
    for (size_t at = 0; at < elements; at += kBlockBytes) {
      const size_t count = std::min(kBlockBytes, elements - at);
      for (size_t b = 0; b < element_bytes; ++b) {
        if (b < raw_planes) {
          std::byte* block = raw + b * RawBlocksBytes(elements) + RawBlocksBytes(at);
          PutRawBlockHeader(count, block);
          target[b] = block + kBlockHeaderBytes;
        } else {
          target[b] = planes.data() + (b - raw_planes) * elements + at;
        }
      }
      SplitPlanes(chunk.data() + at * element_bytes, count, element_bytes, target.data());
    }
    const auto tail = chunk.subspan(elements * element_bytes);
    std::copy(tail.begin(), tail.end(), planes.data() + (element_bytes - raw_planes) * elements);
  }

  // A frame of planes[0, bytes) at `to`: its size, 0 on failure.
  size_t Compress(size_t bytes, bool search, std::span<std::byte> to) {
    ZSTD_CCtx_reset(context.get(), ZSTD_reset_session_and_parameters);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, kLevel);
    size_t size;
    if (search) {
      size = ZSTD_compress2(context.get(), to.data(), to.size(), planes.data(), bytes);
    } else {
      ZSTD_CCtx_setParameter(context.get(), ZSTD_c_blockDelimiters, ZSTD_sf_explicitBlockDelimiters);
      std::array<ZSTD_Sequence, kMaxCodecChunkBytes / kBlockBytes> blocks;  // each only literals
      size_t count = 0;
      for (size_t at = 0; at < bytes; at += kBlockBytes)
        blocks[count++] = {0, static_cast<unsigned>(std::min(kBlockBytes, bytes - at)), 0, 0};
      size = ZSTD_compressSequences(context.get(), to.data(), to.size(), blocks.data(), count, planes.data(),
                                    bytes);
    }
    return ZSTD_isError(size) ? 0 : size;
  }
};

PlaneEncoder::PlaneEncoder() : state_(std::make_unique<State>()) {}
PlaneEncoder::~PlaneEncoder() = default;
PlaneEncoder::PlaneEncoder(PlaneEncoder&&) noexcept = default;

std::span<const std::byte> PlaneEncoder::Encode(std::span<const std::byte> chunk, size_t element_bytes) {
  assert(chunk.size() <= kMaxCodecChunkBytes && element_bytes >= 1 && element_bytes <= kMaxElementBytes);
  const size_t elements = chunk.size() / element_bytes;
  if (elements == 0) return {};
  Outlook outlook = Sample(chunk, element_bytes);
  if (outlook.has_runs) outlook.noise_planes = 0;
  if (outlook.noise_planes == element_bytes) return {};

  std::byte* out = state_->out.data();
  std::byte* rest = out + kFrameHeaderBytes + outlook.noise_planes * RawBlocksBytes(elements);
  state_->Split(chunk, element_bytes, outlook.noise_planes, out + kFrameHeaderBytes);
  const size_t rest_bytes = chunk.size() - outlook.noise_planes * elements;
  size_t rest_size = state_->Compress(rest_bytes, outlook.has_runs, {rest, out + state_->out.size()});
  if (rest_size == 0) return {};
  if (outlook.noise_planes > 0) {  // these blocks continue the raw blocks' frame
    ZSTD_frameHeader header;
    if (ZSTD_getFrameHeader(&header, rest, rest_size) != 0) return {};
    rest_size -= header.headerSize;
    std::memmove(rest, rest + header.headerSize, rest_size);
    PutFrameHeader(static_cast<uint32_t>(chunk.size()), out);
  } else {
    out = rest;
  }
  const size_t size = rest + rest_size - out;
  if (size > chunk.size() - chunk.size() / kMinPayback) return {};
  return {out, size};
}

struct PlaneDecoder::State {
  std::unique_ptr<ZSTD_DCtx, FreeContext> context{ZSTD_createDCtx()};
  std::vector<std::byte> planes = std::vector<std::byte>(kMaxCodecChunkBytes);
};

PlaneDecoder::PlaneDecoder() : state_(std::make_unique<State>()) {}
PlaneDecoder::~PlaneDecoder() = default;
PlaneDecoder::PlaneDecoder(PlaneDecoder&&) noexcept = default;

Status PlaneDecoder::Decode(std::span<const std::byte> stored, size_t element_bytes,
                            std::span<std::byte> out) {
  assert(out.size() <= kMaxCodecChunkBytes && element_bytes >= 1 && element_bytes <= kMaxElementBytes);
  if (ZSTD_getFrameContentSize(stored.data(), stored.size()) != out.size() ||
      ZSTD_findFrameCompressedSize(stored.data(), stored.size()) != stored.size())
    return Corrupt("not one zstd frame of {} bytes", out.size());
  const size_t elements = out.size() / element_bytes;
  std::byte* planes = element_bytes == 1 ? out.data() : state_->planes.data();
  const size_t size =
      ZSTD_decompressDCtx(state_->context.get(), planes, out.size(), stored.data(), stored.size());
  if (ZSTD_isError(size)) return Corrupt("bad zstd frame: {}", ZSTD_getErrorName(size));
  if (size != out.size()) return Corrupt("a zstd frame of {} bytes, not {}", size, out.size());
  if (element_bytes == 1) return OkStatus();
  std::array<const std::byte*, kMaxElementBytes> source;
  for (size_t b = 0; b < element_bytes; ++b) source[b] = planes + b * elements;
  JoinPlanes(source.data(), elements, element_bytes, out.data());
  std::copy(planes + elements * element_bytes, planes + out.size(), out.data() + elements * element_bytes);
  return OkStatus();
}

}  // namespace cairn
