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
// All of it in fp32, whatever the type of the activations; y counts as it is stored. A row is the work of a
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
  const T* residual = nullptr;    // or null: x alone
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

// In lambdas that a vectorised loop calls.
#define CAIRN_INLINE __attribute__((always_inline))

template <typename Team, typename T>
CAIRN_ALWAYS_INLINE void AddResidualRow(const Team& team, const NormForward<T>& a, int64_t row) {
  const int64_t begin = row * a.width;
  const T* x = a.x + begin;
  const T* residual = a.residual + begin;
  T* y = a.y + begin;
  if (a.keep == nullptr) {
    team.Visit(a.width, [=](int64_t i) CAIRN_INLINE { Round(Wide(residual[i]) + Wide(x[i]), y[i]); });
    return;
  }
  const uint8_t* keep = a.keep + begin;
  const float scale = a.keep_scale;
  team.Visit(a.width, [=](int64_t i) CAIRN_INLINE {
    Round(Wide(residual[i]) + static_cast<float>(keep[i]) * scale * Wide(x[i]), y[i]);
  });
}

template <typename Team, typename T>
CAIRN_ALWAYS_INLINE void NormRow(const Team& team, const NormForward<T>& a, int64_t row) {
  if (a.residual != nullptr) AddResidualRow(team, a, row);
  const T* y = (a.residual != nullptr ? a.y : a.x) + row * a.width;
  T* n = a.n + row * a.width;
  const auto width = static_cast<float>(a.width);
  float mean = 0;
  if (a.mean != nullptr) mean = team.Sum(a.width, [=](int64_t i) CAIRN_INLINE { return Wide(y[i]); }) / width;
  const float squares = team.Sum(a.width, [=](int64_t i) CAIRN_INLINE {
    const float centred = Wide(y[i]) - mean;
    return centred * centred;
  });
  const float rstd = 1 / sqrtf(squares / width + a.epsilon);
  if (team.leads()) {
    if (a.mean != nullptr) a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  const T* weight = a.weight;
  const T* bias = a.bias;
  if (bias != nullptr)
    team.Visit(a.width, [=](int64_t i) CAIRN_INLINE {
      Round((Wide(y[i]) - mean) * rstd * Wide(weight[i]) + Wide(bias[i]), n[i]);
    });
  else if (weight != nullptr)
    team.Visit(a.width,
               [=](int64_t i) CAIRN_INLINE { Round((Wide(y[i]) - mean) * rstd * Wide(weight[i]), n[i]); });
  else
    team.Visit(a.width, [=](int64_t i) CAIRN_INLINE { Round((Wide(y[i]) - mean) * rstd, n[i]); });
}

// Gives the sums of g and of g * z, and adds to the gradients of the weights.
template <typename Team, typename T>
CAIRN_ALWAYS_INLINE TwoSums ReduceGradRow(const Team& team, const NormBackward<T>& a, int64_t row, float mean,
                                          float rstd, NormWeightGrads grads) {
  const T* y = a.y + row * a.width;
  const T* dn = a.dn + row * a.width;
  const T* weight = a.weight;
  float* dweight = grads.weight;
  float* dbias = grads.bias;
  if (dbias != nullptr)
    return team.SumTwo(a.width, [=](int64_t i) CAIRN_INLINE {
      const float z = (Wide(y[i]) - mean) * rstd, down = Wide(dn[i]), g = down * Wide(weight[i]);
      dweight[i] += down * z;
      dbias[i] += down;
      return TwoSums{g, g * z};
    });
  if (weight != nullptr)
    return team.SumTwo(a.width, [=](int64_t i) CAIRN_INLINE {
      const float z = (Wide(y[i]) - mean) * rstd, down = Wide(dn[i]), g = down * Wide(weight[i]);
      dweight[i] += down * z;
      return TwoSums{g, g * z};
    });
  return team.SumTwo(a.width, [=](int64_t i) CAIRN_INLINE {
    const float z = (Wide(y[i]) - mean) * rstd, g = Wide(dn[i]);
    return TwoSums{g, g * z};
  });
}

template <typename Team, typename T>
CAIRN_ALWAYS_INLINE void NormGradRow(const Team& team, const NormBackward<T>& a, int64_t row,
                                     NormWeightGrads grads) {
  const int64_t begin = row * a.width;
  const float mean = a.mean != nullptr ? a.mean[row] : 0, rstd = a.rstd[row];
  const TwoSums sums = ReduceGradRow(team, a, row, mean, rstd, grads);
  const auto width = static_cast<float>(a.width);
  const float mean_g = a.mean != nullptr ? sums.first / width : 0, mean_gz = sums.second / width;
  const T* y = a.y + begin;
  const T* dn = a.dn + begin;
  const T* weight = a.weight;
  T* dy = a.dy + begin;
  const auto of_norm = [=](int64_t i, float g) CAIRN_INLINE {
    return rstd * (g - mean_g - (Wide(y[i]) - mean) * rstd * mean_gz);
  };
  const auto store = [&](auto g) CAIRN_INLINE {
    if (a.dy_of_others == nullptr)
      return team.Visit(a.width, [=](int64_t i) CAIRN_INLINE { Round(of_norm(i, g(i)), dy[i]); });
    const T* others = a.dy_of_others + begin;
    team.Visit(a.width, [=](int64_t i) CAIRN_INLINE { Round(of_norm(i, g(i)) + Wide(others[i]), dy[i]); });
  };
  if (weight != nullptr)
    store([=](int64_t i) CAIRN_INLINE { return Wide(dn[i]) * Wide(weight[i]); });
  else
    store([=](int64_t i) CAIRN_INLINE { return Wide(dn[i]); });
  if (a.keep == nullptr) return;
  const uint8_t* keep = a.keep + begin;
  T* dx = a.dx + begin;
  const float scale = a.keep_scale;
  team.Visit(a.width, [=](int64_t i)
                          CAIRN_INLINE { Round(static_cast<float>(keep[i]) * scale * Wide(dy[i]), dx[i]); });
}

}  // namespace cairn
