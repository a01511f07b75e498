// LayerNorm and RMSNorm of rows, forward and backward, with the residual and the dropout before them: one
// pass over memory each way.
//
//   y = residual + keep * x / (1 - p)      or y = x
//   n = (y - mean) * rstd * weight + bias  RMSNorm: a mean of 0, rstd = 1 / sqrt(mean(y^2) + epsilon)
//
// With z = (y - mean) * rstd and g = dn * weight:
//
//   dweight = sum over rows of dn * z,  dbias = sum over rows of dn
//   dy = rstd * (g - mean(g) - z * mean(g * z)) + dy of others;  RMSNorm: without mean(g)
//   dx = keep * dy / (1 - p), and the residual's is dy
//
// All of it in fp32, for activations of any type; y is used as stored. A row is the work of a
// team: a block of threads on a GPU (cuda/norm_kernels.cu), threads of a CPU in the tests. A team has
// Visit(n, f), which calls f(i) for i in [0, n), the same thread for the same i each time; Sum and SumTwo,
// which add up what f(i) gives, for all threads; and leads(), true of one thread.
#pragma once

#include <cmath>

#include "runtime/model/norm/narrow_float.h"

namespace cairn {

// T: of activations and weights. Matrices are [rows, width].
template <typename T>
struct NormForward {
  int64_t width = 0;
  float epsilon = 0;
  const T* x = nullptr;
  const T* residual = nullptr;    // or null: only x
  const uint8_t* keep = nullptr;  // 0 or 1; with a residual only, or null: all
  float keep_scale = 1;           // 1 / (1 - p)
  const T* weight = nullptr;      // [width], or null
  const T* bias = nullptr;        // [width], or null; not without a weight
  T* y = nullptr;                 // with a residual only
  T* n = nullptr;
  float* mean = nullptr;  // [rows]; null: RMSNorm
  float* rstd = nullptr;  // [rows]
};

template <typename T>
struct NormBackward {
  int64_t width = 0;
  const T* dn = nullptr;
  const T* dy_of_others = nullptr;  // or null
  const T* y = nullptr;
  const float* mean = nullptr;  // null: RMSNorm
  const float* rstd = nullptr;
  const T* weight = nullptr;      // or null
  const uint8_t* keep = nullptr;  // or null: dx is dy
  float keep_scale = 1;
  T* dy = nullptr;
  T* dx = nullptr;  // with `keep` only
};

// Where a team adds up the gradients of weights of its rows.
struct NormWeightGrads {
  float* weight = nullptr;  // [width]; null without a weight
  float* bias = nullptr;    // [width]; null without a bias
};

struct TwoSums {
  float first, second;
};

template <typename Team, typename T>
CAIRN_HOST_DEVICE void NormRow(const Team& team, const NormForward<T>& a, int64_t row) {
  const int64_t begin = row * a.width;
  const T* y = a.x + begin;
  if (a.residual != nullptr) {
    T* const sum = a.y + begin;
    team.Visit(a.width, [&](int64_t i) {
      float x = Wide(a.x[begin + i]);
      if (a.keep != nullptr) x *= static_cast<float>(a.keep[begin + i]) * a.keep_scale;
      Round(Wide(a.residual[begin + i]) + x, sum[i]);
    });
    y = sum;
  }
  const auto width = static_cast<float>(a.width);
  float mean = 0;
  if (a.mean != nullptr) mean = team.Sum(a.width, [&](int64_t i) { return Wide(y[i]); }) / width;
  const float squares = team.Sum(a.width, [&](int64_t i) {
    const float centred = Wide(y[i]) - mean;
    return centred * centred;
  });
  const float rstd = 1 / sqrtf(squares / width + a.epsilon);
  if (team.leads()) {
    if (a.mean != nullptr) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  team.Visit(a.width, [&](int64_t i) {
    float n = (Wide(y[i]) - mean) * rstd;
    if (a.weight != nullptr) n *= Wide(a.weight[i]);
    if (a.bias != nullptr) n += Wide(a.bias[i]);
    Round(n, a.n[begin + i]);
  });
}

// Adds to the gradients of the weights.
template <typename Team, typename T>
CAIRN_HOST_DEVICE void NormGradRow(const Team& team, const NormBackward<T>& a, int64_t row,
                                   NormWeightGrads grads) {
  const int64_t begin = row * a.width;
  const float mean = a.mean != nullptr ? a.mean[row] : 0, rstd = a.rstd[row];
  const auto z_of = [&](int64_t i) { return (Wide(a.y[begin + i]) - mean) * rstd; };
  const auto g_of = [&](int64_t i) {
    const float dn = Wide(a.dn[begin + i]);
    return a.weight != nullptr ? dn * Wide(a.weight[i]) : dn;
  };
  const TwoSums sums = team.SumTwo(a.width, [&](int64_t i) {
    const float z = z_of(i), g = g_of(i), dn = Wide(a.dn[begin + i]);
    if (grads.weight != nullptr) grads.weight[i] += dn * z;
    if (grads.bias != nullptr) grads.bias[i] += dn;
    return TwoSums{g, g * z};
  });
  const auto width = static_cast<float>(a.width);
  const float mean_g = a.mean != nullptr ? sums.first / width : 0, mean_gz = sums.second / width;
  team.Visit(a.width, [&](int64_t i) {
    float dy = rstd * (g_of(i) - mean_g - z_of(i) * mean_gz);
    if (a.dy_of_others != nullptr) dy += Wide(a.dy_of_others[begin + i]);
    Round(dy, a.dy[begin + i]);
    if (a.keep == nullptr) return;
    const float kept = static_cast<float>(a.keep[begin + i]) * a.keep_scale;
    Round(kept * Wide(a.dy[begin + i]), a.dx[begin + i]);
  });
}

}  // namespace cairn
