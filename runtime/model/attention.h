// Causal multi-head self-attention.
#pragma once

#include "runtime/model/random_streams.h"
#include "runtime/model/tensor_parallel.h"

namespace cairn {

class Attention {
 public:
  // `heads`: those that this rank computes.
  Attention(ColumnParallelLinear qkv, RowParallelLinear output, int heads, double dropout,
            RandomStreams& streams)
      : qkv_(std::move(qkv)),
        output_(std::move(output)),
        heads_(heads),
        dropout_(dropout),
        streams_(&streams) {}

  at::Tensor forward(const at::Tensor& x, bool training) const;  // [b, s, h] -> [b, s, h]

 private:
  ColumnParallelLinear qkv_;  // queries, then keys, then values of all heads
  RowParallelLinear output_;
  int heads_;
  double dropout_;
  RandomStreams* streams_;
};

}  // namespace cairn
