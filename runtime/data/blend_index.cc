#include "runtime/data/blend_index.h"

#include <algorithm>

namespace cairn {
namespace {

// numpy's pairwise sum (loops_utils.h.src): eight partial sums per block of at most 128 numbers; longer
// arrays are halved, cut at a multiple of eight.
double PairwiseSum(std::span<const double> values) {
  const size_t n = values.size();
  if (n > 128) {
    const size_t half = n / 2 - n / 2 % 8;
    return PairwiseSum(values.first(half)) + PairwiseSum(values.subspan(half));
  }
  double sum = 0;
  size_t i = 0;
  if (n >= 8) {
    double r[8];
    std::copy_n(values.begin(), 8, r);
    for (i = 8; i < n - n % 8; i += 8)
      for (size_t k = 0; k < 8; ++k) r[k] += values[i + k];
    sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  }
  for (; i < n; ++i) sum += values[i];
  return sum;
}

}  // namespace

std::vector<double> NormalizeWeights(std::span<const double> weights) {
  const double sum = PairwiseSum(weights);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) weight /= sum;
  return normalized;
}

BlendIndex BuildBlendIndex(std::span<const double> weights, uint64_t size) {
  BlendIndex index;
  index.dataset.reserve(size);
  index.sample.reserve(size);
  std::vector<uint32_t> taken(weights.size());
  for (uint64_t i = 0; i < size; ++i) {
    const double so_far = std::max(static_cast<double>(i), 1.0);
    size_t chosen = 0;
    double furthest = weights[0] * so_far - static_cast<double>(taken[0]);
    for (size_t k = 1; k < weights.size(); ++k) {
      const double behind = weights[k] * so_far - static_cast<double>(taken[k]);
      if (behind > furthest) {
        furthest = behind;
        chosen = k;
      }
    }
    index.dataset.push_back(static_cast<uint16_t>(chosen));
    index.sample.push_back(taken[chosen]++);
  }
  return index;
}

}  // namespace cairn
