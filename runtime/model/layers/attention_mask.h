// The mask that is added to attention's scores: causality, ALiBi's distances, a sliding window.
//
// Source of ALiBi: Press et al., "Train Short, Test Long" (2021); of slopes for numbers of heads that are not
// powers of two, its authors' code, which BLOOM follows.
#pragma once

#include <ATen/Tensor.h>

#include <vector>

namespace cairn {

// One for each of the model's heads.
std::vector<double> AlibiSlopes(int heads);

class AttentionMask {
 public:
  // `slopes`: of the heads that this rank computes; empty: no ALiBi. `window`: keys that a query sees, its
  // own among them; 0: all.
  AttentionMask(std::vector<double> slopes, int64_t window) : slopes_(std::move(slopes)), window_(window) {}

  // [1 or b, 1 or heads, s, s], -inf where a query sees no key; undefined if the causal mask is enough.
  // Kept for the layers that ask for the same. `first_keys`: see Documents.
  at::Tensor Of(int64_t s, const at::TensorOptions& options, const at::Tensor& first_keys) const;

 private:
  std::vector<double> slopes_;
  int64_t window_;
  mutable at::Tensor made_;
  mutable at::Tensor made_for_;  // first keys
};

}  // namespace cairn
