#include "runtime/save_codec.h"

#include <algorithm>

#include "ckpt/codec_policy.h"

namespace cairn {
namespace {

constexpr size_t kSampledChunks = 8;

// The chunks that lie at even distances of the image, so that every class of tensor counts by its size.
CodecSpeed Sample(Snapshot& snapshot) {
  const ShardPlan& plan = snapshot.plan();
  std::vector<std::pair<size_t, uint64_t>> chunks;  // piece, offset in it
  for (size_t i = 0; i < plan.piece_count(); ++i)
    for (uint64_t at = 0; at < plan.piece(i).stored_bytes; at += kChunkBytes) chunks.emplace_back(i, at);
  CodecSpeed speed;
  const size_t count = std::min(kSampledChunks, chunks.size());
  for (size_t n = 0; n < count; ++n) {
    const auto [piece, at] = chunks[(2 * n + 1) * chunks.size() / (2 * count)];
    const uint64_t bytes = std::min(kChunkBytes, plan.piece(piece).stored_bytes - at);
    speed += MeasureCodec(snapshot.image().subspan(plan.OffsetOf(piece) + at, bytes),
                          SizeOf(plan.tensor(piece).dtype));
  }
  return speed;
}

}  // namespace

bool SaveCodec::ShouldCompress(Snapshot& snapshot) const {
  if (mode_ != CodecMode::kAuto) return mode_ == CodecMode::kZstd;
  return disk_bytes_per_second_ > 0 && CompressionPays(disk_bytes_per_second_, Sample(snapshot), threads_);
}

void SaveCodec::NoteFlush(uint64_t bytes, double seconds) {
  disk_bytes_per_second_ = static_cast<double>(bytes) / std::max(seconds, 1e-6);
}

}  // namespace cairn
