#include "runtime/model/layers/attention.h"

#include <ATen/ATen.h>

#include <optional>

#include "runtime/model/autograd/recompute.h"
#include "runtime/model/gemm/gemm.h"

namespace cairn {

using at::Tensor;

Tensor Attention::forward(const Tensor& x, bool training, const Documents& documents) const {
  const int64_t queries = shape_.heads * shape_.head, keys = shape_.key_value_heads * shape_.head;
  const std::vector<Tensor> parts = qkv_.forward(x).split_with_sizes({queries, keys, keys}, -1);
  const std::vector<Tensor> qkv = {Rotate(Heads(parts[0], shape_.heads, query_norm_), documents),
                                   Rotate(Heads(parts[1], shape_.key_value_heads, key_norm_), documents),
                                   Heads(parts[2], shape_.key_value_heads, std::nullopt)};
  const BlockOfMany mix = [this, training, documents](const std::vector<Tensor>& in) {
    return Mix(in, training, documents);
  };
  const Tensor mixed = shape_.recomputed && training ? Recompute(mix, qkv, *streams_) : mix(qkv);
  return output_.forward(mixed.reshape({mixed.size(0), mixed.size(1), queries}));
}

// [b, s, heads * d] -> [b, s, heads, d]
Tensor Attention::Heads(const Tensor& part, int64_t heads, const std::optional<Norm>& norm) const {
  const Tensor y = part.view({part.size(0), part.size(1), heads, shape_.head});
  return norm ? norm->forward(y) : y;
}

Tensor Attention::Rotate(const Tensor& heads, const Documents& documents) const {
  return rotary_ ? rotary_->forward(heads, documents.positions) : heads;
}

// Takes queries, keys and values, [b, s, heads, d] each.
Tensor Attention::Mix(const std::vector<Tensor>& qkv, bool training, const Documents& documents) const {
  const at::ScalarType type = qkv[0].scalar_type();
  // The forward pass is fast in bf16 on any CPU, the backward pass is not. fp16 is left to libtorch.
  const bool widen = type == at::kBFloat16 && ComputeInFp32(qkv[0]);
  const auto factor = [&](const Tensor& x) { return widen ? x.to(at::kFloat) : x; };
  const Tensor q = factor(qkv[0]), k = factor(qkv[1]), v = factor(qkv[2]);
  const double dropout = training ? shape_.dropout : 0.0;
  const Tensor mask = mask_->Of(q.size(1), q.options().requires_grad(false), documents.first_keys);
  std::optional<RandomStreams::ParallelRegion> own_stream;
  if (dropout > 0) own_stream.emplace(*streams_);
  const auto by_heads = [&](const Tensor& x) {  // [b, query heads, s, d]
    const int64_t group = shape_.heads / x.size(2);
    const Tensor all = group > 1 ? x.unsqueeze(3).expand({-1, -1, -1, group, -1}).flatten(2, 3) : x;
    return all.transpose(1, 2);
  };
  return at::scaled_dot_product_attention(by_heads(q), by_heads(k), by_heads(v),
                                          mask.defined() ? std::optional(mask) : std::nullopt, dropout,
                                          /*is_causal=*/!mask.defined(), shape_.scale)
      .transpose(1, 2)
      .to(type);
}

}  // namespace cairn
