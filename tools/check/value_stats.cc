#include "tools/check/value_stats.h"

#include <algorithm>

#include "convert/stream/decode_values.h"

namespace cairn {

void ValueStats::Add(Dtype dtype, std::span<const std::byte> bytes) {
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
      squares += value * value;
    }
  });
}

double ValueStats::norm() const { return std::sqrt(squares); }

}  // namespace cairn
