#include "runtime/model/attention.h"

#include <torch/torch.h>

#include <optional>

namespace cairn {

using at::Tensor;

Tensor Attention::forward(const Tensor& x, bool training) const {
  const Tensor qkv =
      qkv_.forward(x).view({x.size(0), x.size(1), 3, heads_, -1}).transpose(1, 3);  // [b, heads, 3, s, d]
  const double dropout = training ? dropout_ : 0.0;
  Tensor mixed;  // [b, heads, s, d]
  {
    std::optional<RandomStreams::ParallelRegion> own_stream;
    if (dropout > 0) own_stream.emplace(*streams_);
    mixed = at::scaled_dot_product_attention(qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2),
                                             std::nullopt, dropout,
                                             /*is_causal=*/true);
  }
  return output_.forward(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), -1}));
}

}  // namespace cairn
