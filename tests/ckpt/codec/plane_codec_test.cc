#include "ckpt/codec/plane_codec.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "ckpt/codec/codec_policy.h"

namespace cairn {
namespace {

using PlaneBytes = std::vector<std::byte>;

// HDF5's shuffle, as its documentation has it.
PlaneBytes Shuffled(const PlaneBytes& in, size_t element) {
  const size_t count = in.size() / element;
  PlaneBytes out = in;  // the tail stays
  for (size_t i = 0; i < count; ++i)
    for (size_t b = 0; b < element; ++b) out[b * count + i] = in[i * element + b];
  return out;
}

PlaneBytes Random(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  PlaneBytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// Floats like weights: normal, with standard deviation 0.02; fp32, or truncated to bf16.
PlaneBytes Weights(size_t count, size_t element, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, 0.02);
  PlaneBytes bytes(count * element);
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(normal(random));
    std::memcpy(bytes.data() + i * element, reinterpret_cast<const char*>(&value) + 4 - element, element);
  }
  return bytes;
}

// Encodes, checks that stock zstd finds the shuffled bytes in one frame with its size, and decodes. Returns
// the stored size, which is the chunk's if encoding does not pay.
size_t RoundTrip(const PlaneBytes& chunk, size_t element) {
  static PlaneEncoder encoder;
  static PlaneDecoder decoder;
  const auto stored = encoder.Encode(chunk, element);
  if (stored.empty()) return chunk.size();
  EXPECT_LT(stored.size(), chunk.size());
  EXPECT_EQ(ZSTD_getFrameContentSize(stored.data(), stored.size()), chunk.size());
  EXPECT_EQ(ZSTD_findFrameCompressedSize(stored.data(), stored.size()), stored.size());
  PlaneBytes plain(chunk.size());
  EXPECT_EQ(ZSTD_decompress(plain.data(), plain.size(), stored.data(), stored.size()), chunk.size());
  EXPECT_TRUE(plain == Shuffled(chunk, element));
  PlaneBytes decoded(chunk.size(), std::byte{0xee});
  const Status status = decoder.Decode(stored, element, decoded);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(decoded == chunk);
  return stored.size();
}

TEST(PlaneCodec, EveryLengthAndElementSizeRoundTrips) {
  for (const size_t element : {1, 2, 3, 4, 8})
    for (const size_t size : {0u, 1u, 7u, 100u, 1021u, 131'073u, 1'000'003u, 4u << 20}) {
      SCOPED_TRACE(fmt::format("{} bytes of elements of {}", size, element));
      PlaneBytes mixed = Random(size, size);
      for (size_t i = 0; i < size; ++i)
        if (i % element == element - 1) mixed[i] &= std::byte{7};
      RoundTrip(mixed, element);
      RoundTrip(Random(size, size + 1), element);
      RoundTrip(PlaneBytes(size, std::byte{5}), element);
      PlaneBytes half = Random(size, size + 2);  // runs and noise in one chunk
      std::fill(half.begin() + size / 2, half.end(), std::byte{0});
      RoundTrip(half, element);
    }
}

// Exponent and sign of such floats hold about 2.7 of 8 bits; the bounds are that and 2 % for the coder.
TEST(PlaneCodec, CompressesTrainedFloats) {
  EXPECT_LT(RoundTrip(Weights(2 << 20, 2, 1), 2), (4 << 20) * 0.69);
  EXPECT_LT(RoundTrip(Weights(1 << 20, 4, 2), 4), (4 << 20) * 0.85);
  EXPECT_LT(RoundTrip(Weights(3000, 4, 3), 4), 12000 * 0.88);
}

TEST(PlaneCodec, RunsShrinkAndNoiseIsStoredAsItIs) {
  EXPECT_LT(RoundTrip(PlaneBytes(4 << 20), 4), 2000u);
  EXPECT_LT(RoundTrip(PlaneBytes(4 << 20), 2), 2000u);
  PlaneBytes counting(4 << 20);  // an index: fixed high bytes and very regular low ones
  for (size_t i = 0; i < counting.size() / 8; ++i) std::memcpy(counting.data() + i * 8, &i, 8);
  EXPECT_LT(RoundTrip(counting, 8), counting.size() / 2);
  PlaneEncoder encoder;
  for (const size_t element : {1, 2, 4, 8}) EXPECT_TRUE(encoder.Encode(Random(4 << 20, 7), element).empty());
}

// For any bytes, Decode fails or fills `out`; it never reads or writes elsewhere (checked under sanitizers).
TEST(PlaneCodec, DamagedChunksFailOrDecodeWithinBounds) {
  const PlaneBytes chunk = Weights(20'000, 4, 9);
  PlaneEncoder encoder;
  PlaneDecoder decoder;
  const auto encoded = encoder.Encode(chunk, 4);
  const PlaneBytes stored(encoded.begin(), encoded.end());
  PlaneBytes out(chunk.size());
  const auto decode = [&](const PlaneBytes& bytes) { return decoder.Decode(bytes, 4, out); };
  ASSERT_TRUE(decode(stored).ok());
  for (size_t length = 0; length < stored.size(); length += length < 64 ? 1 : 97)
    EXPECT_EQ(decode(PlaneBytes(stored.begin(), stored.begin() + length)).kind(), StatusKind::kCorrupt)
        << length;
  int accepted = 0;
  for (size_t bit = 0; bit < 8 * 12; ++bit) {  // the frame's header and the first block's
    PlaneBytes damaged = stored;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    accepted += decode(damaged).ok();
  }
  EXPECT_LE(accepted, 1);  // the format has one bit without a meaning
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {  // most of these only change values, which digests are for
    PlaneBytes damaged = stored;
    damaged[random() % damaged.size()] ^= static_cast<std::byte>(1 << random() % 8);
    (void)decode(damaged);
  }
  for (int i = 0; i < 300; ++i) {
    PlaneBytes garbage = Random(random() % 4096, i);
    std::copy_n(stored.begin(), std::min<size_t>(garbage.size(), 9 + i % 8), garbage.begin());
    (void)decode(garbage);
  }
  PlaneBytes twice = stored;
  twice.insert(twice.end(), stored.begin(), stored.end());
  EXPECT_FALSE(decode(twice).ok());
  PlaneBytes short_out(chunk.size() - 4), long_out(chunk.size() + 4);
  EXPECT_FALSE(decoder.Decode(stored, 4, short_out).ok());
  EXPECT_FALSE(decoder.Decode(stored, 4, long_out).ok());
}

TEST(PlaneCodec, DecodesFramesOfOtherEncoders) {
  const PlaneBytes chunk = Weights(100'000, 4, 4);
  const PlaneBytes planes = Shuffled(chunk, 4);
  PlaneBytes stored(ZSTD_compressBound(planes.size()));
  stored.resize(ZSTD_compress(stored.data(), stored.size(), planes.data(), planes.size(), 7));
  PlaneBytes out(chunk.size());
  PlaneDecoder decoder;
  ASSERT_TRUE(decoder.Decode(stored, 4, out).ok());
  EXPECT_TRUE(out == chunk);
}

TEST(CodecPolicy, CompressesOnlyWhileTheDiskIsTheBottleneck) {
  const CodecSpeed sample{1000, 800, 1.0, 0.5};  // 1000 bytes/s and thread, ratio 0.8
  EXPECT_TRUE(CompressionPays(500, sample, 1));
  EXPECT_TRUE(CompressionPays(900, sample, 1));
  EXPECT_FALSE(CompressionPays(1000, sample, 1));  // the encoder is not faster than the disk
  EXPECT_FALSE(CompressionPays(990, sample, 1));   // a gain of 1 %
  EXPECT_TRUE(CompressionPays(1000, sample, 2));
  EXPECT_TRUE(CompressionPays(1900, sample, 2));
  EXPECT_FALSE(CompressionPays(2500, sample, 2));
  EXPECT_FALSE(CompressionPays(10, {1000, 1000, 0.0, 0.0}, 8));  // nothing saved
  EXPECT_FALSE(CompressionPays(0, sample, 8));
  EXPECT_FALSE(CompressionPays(500, {}, 8));
}

TEST(CodecPolicy, ReportsMeasuredSizesAndSpeeds) {
  const PlaneBytes weights = Weights(3 << 19, 4, 1);  // a chunk and a half
  const CodecSpeed speed = MeasureCodec(weights, 4);
  EXPECT_EQ(speed.bytes, weights.size());
  EXPECT_LT(speed.stored_bytes, weights.size() * 0.85);
  EXPECT_GT(speed.encode_seconds, 0);
  EXPECT_GT(speed.decode_seconds, 0);
  const PlaneBytes noise = Random(5 << 20, 1);
  EXPECT_EQ(MeasureCodec(noise, 4).stored_bytes, noise.size());
}

}  // namespace
}  // namespace cairn
