#include "runtime/train/mock_data.h"

#include "runtime/data/hash.h"

namespace cairn {

void MockSample(uint64_t seed, uint64_t i, int64_t vocab_size, std::span<int64_t> out) {
  int64_t token = 0;
  for (size_t k = 0; k < out.size(); ++k) {
    const uint64_t bits = HashNumbers({seed, i, k});
    const double u = static_cast<double>(bits >> 12) * 0x1p-52;
    const bool successor = k > 0 && (bits & 1) != 0;
    token = successor ? (token + 1) % vocab_size
                      : static_cast<int64_t>(u * u * u * u * static_cast<double>(vocab_size));
    out[k] = token;
  }
}

}  // namespace cairn
