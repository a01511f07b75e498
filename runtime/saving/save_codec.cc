#include "runtime/saving/save_codec.h"

#include <algorithm>

namespace cairn {
namespace {

constexpr size_t kSampledChunks = 8;

}  // namespace

// Chunks at even distances in the image: every class of tensor counts by its size.
Result<CodecSpeed> SampleCodec(Snapshot& snapshot) {
  CAIRN_RETURN_IF_ERROR(snapshot.WaitFor(snapshot.image().size()));
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

Result<bool> SaveCodec::ShouldCompress(const std::function<Result<CodecSpeed>()>& sample) const {
  if (mode_ != "auto") return mode_ == "zstd";
  if (plain_bytes_per_second_ == 0) return false;
  const bool tried = packed_bytes_per_second_ > 0;
  const bool look = alike_ % kLookAgain == 0 || (!tried && alike_ == 1);
  if (!look) return tried && packed_bytes_per_second_ > kLeastGain * plain_bytes_per_second_;
  if (last_) return false;
  CAIRN_ASSIGN_OR_RETURN(const CodecSpeed speed, sample());
  return CompressionPays(plain_bytes_per_second_, speed, threads_);
}

void SaveCodec::NoteFlush(bool compressed, uint64_t bytes, double seconds) {
  (compressed ? packed_bytes_per_second_ : plain_bytes_per_second_) =
      static_cast<double>(bytes) / std::max(seconds, 1e-6);
  alike_ = compressed == last_ ? alike_ + 1 : 1;
  last_ = compressed;
}

}  // namespace cairn
