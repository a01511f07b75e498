// Rotary position embeddings: pairs of elements of each head are turned by an angle that grows with the
// position.
//
// Sources: Su et al., "RoFormer" (2021); of the scaled kinds transformers' modeling_rope_utils.py (5.23),
// whose names runtime/config/rope_scaling.h has.
#pragma once

#include <ATen/Tensor.h>

#include "runtime/config/model_spec.h"

namespace cairn {

// Angle of a step of one position, of each pair. `positions`: the model's max_position_embeddings; `length`:
// tokens of the samples, which dynamic and longrope depend on.
std::vector<double> RotaryFrequencies(const RotarySpec& rotary, int64_t pairs, double positions,
                                      double length);

// The factor of cosines and sines.
double RotaryFactor(const RopeScaling& scaling);

class Rotary {
 public:
  Rotary(RotarySpec spec, int64_t pairs, int64_t positions)
      : spec_(std::move(spec)), pairs_(pairs), positions_(positions) {}

  // [b, s, heads, d] -> the same; d >= 2 * pairs. `positions`: see Documents.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& positions = {}) const;

 private:
  struct Angles {
    at::Tensor cos, sin;   // fp32 [s, 1, pairs]
    at::Tensor positions;  // int64 [b, s], or undefined

    at::Tensor ByToken(const at::Tensor& of_position) const;  // [s or b, s, 1, pairs]
  };
  const Angles& AnglesOf(const at::Tensor& x) const;
  // By the angles, or (sign -1) back.
  at::Tensor Turn(const at::Tensor& x, const Angles& angles, int sign) const;
  at::Tensor Half(const at::Tensor& x, int which) const;  // [..., pairs], a view

  RotarySpec spec_;
  int64_t pairs_;
  int64_t positions_;
  mutable Angles angles_;  // of the last length
};

}  // namespace cairn
