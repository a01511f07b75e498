// Which dataset of a blend gives the next sample: always the one furthest below its weight.
//
// Source: build_blending_indices of megatron-core 0.16, helpers.cpp, which is the same in all Megatrons. The
// choice for sample i does not depend on how many samples follow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

inline constexpr size_t kMaxBlendedDatasets = 32767;  // Megatron's own limit

// One entry per sample of the blend.
struct BlendIndex {
  std::vector<uint16_t> dataset;
  std::vector<uint32_t> sample;  // of that dataset
};

// `weights` are normalized; at most kMaxBlendedDatasets of them. Linear in weights * size.
BlendIndex BuildBlendIndex(std::span<const double> weights, uint64_t size);

// Divided by their sum as numpy.sum adds: with other rounding another dataset might give the next sample.
std::vector<double> NormalizeWeights(std::span<const double> weights);

}  // namespace cairn
