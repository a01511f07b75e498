// The feed-forward block: up, GELU (the tanh form, as GPT-2), down.
#pragma once

#include "runtime/model/tensor_parallel.h"

namespace cairn {

class Mlp {
 public:
  Mlp(ColumnParallelLinear up, RowParallelLinear down) : up_(std::move(up)), down_(std::move(down)) {}

  at::Tensor forward(const at::Tensor& x) const;  // [b, s, h] -> [b, s, h]

 private:
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

}  // namespace cairn
