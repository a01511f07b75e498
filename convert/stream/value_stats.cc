#include "convert/stream/value_stats.h"

#include <algorithm>

#include "ckpt/base/chunks.h"
#include "convert/stream/decode_values.h"

namespace cairn {

void ValueStats::Add(Dtype dtype, std::span<const std::byte> bytes) {
  const size_t size = SizeOf(dtype);
  SumOverChunks(bytes.size() / size, ValueStats(), *this, [&](ValueStats& part, size_t begin, size_t n) {
    part.AddChunk(dtype, bytes.subspan(begin * size, n * size));
  });
}

void ValueStats::Join(const ValueStats& other) {
  if (other.finite() > 0) {
    min = finite() == 0 ? other.min : std::min(min, other.min);
    max = finite() == 0 ? other.max : std::max(max, other.max);
  }
  count += other.count;
  nan += other.nan;
  infinite += other.infinite;
  zeros += other.zeros;
  sum += other.sum;
  squares += other.squares;
  fourths += other.fourths;
}

void ValueStats::AddChunk(Dtype dtype, std::span<const std::byte> bytes) {
  VisitValues(dtype, bytes, [this](size_t, double value) {
    ++count;
    if (std::isnan(value)) {
      ++nan;
    } else if (std::isinf(value)) {
      ++infinite;
    } else {
      zeros += value == 0;
      min = finite() == 1 ? value : std::min(min, value);
      max = finite() == 1 ? value : std::max(max, value);
      sum += value;
      squares += value * value;
      fourths += value * value * value * value;
    }
  });
}

double ValueStats::norm() const { return std::sqrt(squares); }

}  // namespace cairn
