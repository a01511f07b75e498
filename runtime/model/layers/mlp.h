// The feed-forward block: up, activation, down; or gated: down(act(gate) * up).
#pragma once

#include "runtime/config/model_spec.h"
#include "runtime/model/layers/tensor_parallel.h"

namespace cairn {

class Mlp {
 public:
  // `up`: if gated, the fused matrix of gate and up.
  Mlp(ColumnParallelLinear up, RowParallelLinear down, Activation activation, bool gated)
      : up_(std::move(up)), down_(std::move(down)), activation_(activation), gated_(gated) {}

  at::Tensor forward(const at::Tensor& x) const;  // [b, s, h] -> [b, s, h]

 private:
  ColumnParallelLinear up_;
  RowParallelLinear down_;
  Activation activation_;
  bool gated_;
};

}  // namespace cairn
