// A block is cut into chunks that threads compare side by side. The results are joined in order, so that the
// first difference is the right one and sums do not depend on the number of threads. Within a chunk, batches
// whose bytes are equal only add to the norms; elements are compared one by one only if a batch differs.

#include "convert/stream/value_distance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ckpt/base/chunks.h"
#include "convert/stream/decode_values.h"

namespace cairn {
namespace {

constexpr size_t kBatch = 4096;  // elements decoded at a time

// Bits of a float as an integer that grows with its value.
template <typename Signed>
int64_t Ordered(const std::byte* at) {
  Signed bits;
  std::memcpy(&bits, at, sizeof(bits));
  return bits < 0 ? -int64_t{static_cast<Signed>(bits & std::numeric_limits<Signed>::max())} : int64_t{bits};
}

uint64_t UlpsApart(size_t size, const std::byte* a, const std::byte* b) {
  const auto apart = [&](auto ordered) {  // of two doubles it may be more than an int64_t holds
    const auto [low, high] = std::minmax({ordered(a), ordered(b)});
    return static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  };
  if (size == 8) return apart(Ordered<int64_t>);
  if (size == 4) return apart(Ordered<int32_t>);
  if (size == 2) return apart(Ordered<int16_t>);
  if (size == 1) return apart(Ordered<int8_t>);
  return 0;
}

// A value that a double may not hold: every bit of a 64-bit integer counts.
long double Exact(Dtype dtype, const std::byte* at, double decoded) {
  if (dtype != Dtype::kI64) return decoded;
  int64_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace

void ValueDistance::Add(uint64_t begin, std::span<const std::byte> a, std::span<const std::byte> b) {
  const size_t size_a = SizeOf(a_), size_b = SizeOf(b_);
  SumOverChunks(a.size() / size_a, ValueDistance(a_, b_, absolute_, relative_), *this,
                [&](ValueDistance& part, size_t at, size_t count) {
                  part.AddChunk(begin + at, a.subspan(at * size_a, count * size_a),
                                b.subspan(at * size_b, count * size_b));
                });
}

void ValueDistance::Join(const ValueDistance& behind) {
  if (differing == 0) first = behind.first;
  if (beyond == 0) first_beyond = behind.first_beyond;
  elements += behind.elements;
  differing += behind.differing;
  beyond += behind.beyond;
  nan_payloads += behind.nan_payloads;
  max_absolute = std::max(max_absolute, behind.max_absolute);
  max_relative = std::max(max_relative, behind.max_relative);
  max_ulp = std::max(max_ulp, behind.max_ulp);
  squares_a_ += behind.squares_a_;
  squares_b_ += behind.squares_b_;
  product_ += behind.product_;
  squares_of_difference_ += behind.squares_of_difference_;
}

// Most chunks are equal, and only their norms are wanted then.
void ValueDistance::AddChunk(uint64_t begin, std::span<const std::byte> a, std::span<const std::byte> b) {
  const size_t size_a = SizeOf(a_), size_b = SizeOf(b_);
  const size_t count = a.size() / size_a;
  elements += count;
  double of_a[kBatch], of_b[kBatch];
  for (size_t at = 0; at < count; at += kBatch) {
    const size_t here = std::min(kBatch, count - at);
    const auto part_a = a.subspan(at * size_a, here * size_a), part_b = b.subspan(at * size_b, here * size_b);
    VisitValues(a_, part_a, [&](size_t i, double value) { of_a[i] = value; });
    const bool same = a_ == b_ && std::memcmp(part_a.data(), part_b.data(), part_a.size()) == 0;
    if (same) {
      double squares = 0;
      for (size_t i = 0; i < here; ++i) squares += std::isfinite(of_a[i]) ? of_a[i] * of_a[i] : 0;
      squares_a_ += squares, squares_b_ += squares, product_ += squares;
      continue;
    }
    VisitValues(b_, part_b, [&](size_t i, double value) { of_b[i] = value; });
    for (size_t i = 0; i < here; ++i) {
      const std::byte *x = &part_a[i * size_a], *y = &part_b[i * size_b];
      const long double value_a = Exact(a_, x, of_a[i]), value_b = Exact(b_, y, of_b[i]);
      const bool equal = a_ == b_ ? std::memcmp(x, y, size_a) == 0
                                  : value_a == value_b || (std::isnan(of_a[i]) && std::isnan(of_b[i]));
      if (std::isfinite(of_a[i]) && std::isfinite(of_b[i])) {
        squares_a_ += of_a[i] * of_a[i], squares_b_ += of_b[i] * of_b[i], product_ += of_a[i] * of_b[i];
      }
      if (equal) continue;
      if (a_ == b_ && IsFloat(a_) && !std::isnan(of_a[i]) && !std::isnan(of_b[i]))
        max_ulp = std::max(max_ulp, UlpsApart(size_a, x, y));
      if (HoldsNumbers(a_) && HoldsNumbers(b_))
        AddElement(begin + at + i, value_a, value_b);
      else
        AddElement(begin + at + i, 0, std::numeric_limits<long double>::infinity());
    }
  }
}

void ValueDistance::AddElement(uint64_t index, long double a, long double b) {
  if (differing++ == 0) first = index;
  const bool exact = absolute_ == 0 && relative_ == 0;
  if (std::isnan(a) && std::isnan(b)) {  // they differ only in their bits
    ++nan_payloads;
    if (exact && beyond++ == 0) first_beyond = index;
    return;
  }
  const long double distance = std::abs(a - b);
  auto apart = static_cast<double>(distance);
  if (!std::isfinite(apart)) {
    apart = std::numeric_limits<double>::infinity();
    max_relative = apart;
  } else {
    squares_of_difference_ += apart * apart;
    if (apart > 0)
      max_relative =
          std::max(max_relative, static_cast<double>(distance / std::max(std::abs(a), std::abs(b))));
  }
  max_absolute = std::max(max_absolute, apart);
  // Nothing is within a tolerance of infinity, not even if the tolerance is a part of it.
  if (!exact && std::isfinite(apart) && distance <= absolute_ + relative_ * std::abs(b)) return;
  if (beyond++ == 0) first_beyond = index;
}

double ValueDistance::relative_norm() const {
  if (std::isinf(max_absolute)) return max_absolute;
  if (squares_of_difference_ == 0) return 0;
  return squares_a_ > 0 ? std::sqrt(squares_of_difference_ / squares_a_)
                        : std::numeric_limits<double>::infinity();
}

double ValueDistance::cosine() const {
  const double norms = std::sqrt(squares_a_) * std::sqrt(squares_b_);
  return norms > 0 ? product_ / norms : squares_a_ == squares_b_ ? 1 : 0;
}

}  // namespace cairn
