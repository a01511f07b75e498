// Causal self-attention of many heads; groups of query heads may share a key and a value head.
#pragma once

#include <memory>
#include <optional>

#include "runtime/model/autograd/random_streams.h"
#include "runtime/model/layers/attention_mask.h"
#include "runtime/model/layers/documents.h"
#include "runtime/model/layers/rotary.h"
#include "runtime/model/layers/tensor_parallel.h"
#include "runtime/model/norm/norm.h"

namespace cairn {

// This rank's share of it.
struct AttentionShape {
  int64_t heads = 0;
  int64_t key_value_heads = 0;  // divides heads
  int64_t head = 0;             // elements of one
  double scale = 0;             // of query times key
  double dropout = 0;
  bool recomputed = false;  // scores and probabilities are, in backward
};

class Attention {
 public:
  // `qkv`: queries, then keys, then values of all heads. Norms and `rotary` may be missing; `mask` and
  // `rotary` are shared by layers.
  Attention(AttentionShape shape, ColumnParallelLinear qkv, RowParallelLinear output,
            std::optional<Norm> query_norm, std::optional<Norm> key_norm,
            std::shared_ptr<const Rotary> rotary, std::shared_ptr<const AttentionMask> mask,
            RandomStreams& streams)
      : shape_(shape),
        qkv_(std::move(qkv)),
        output_(std::move(output)),
        query_norm_(std::move(query_norm)),
        key_norm_(std::move(key_norm)),
        rotary_(std::move(rotary)),
        mask_(std::move(mask)),
        streams_(&streams) {}

  // [b, s, h] -> [b, s, h]
  at::Tensor forward(const at::Tensor& x, bool training, const Documents& documents) const;

 private:
  at::Tensor Heads(const at::Tensor& part, int64_t heads, const std::optional<Norm>& norm) const;
  at::Tensor Rotate(const at::Tensor& heads, const Documents& documents) const;
  at::Tensor Mix(const std::vector<at::Tensor>& qkv, bool training, const Documents& documents) const;

  AttentionShape shape_;
  ColumnParallelLinear qkv_;
  RowParallelLinear output_;
  std::optional<Norm> query_norm_, key_norm_;  // of each head, before it rotates
  std::shared_ptr<const Rotary> rotary_;
  std::shared_ptr<const AttentionMask> mask_;
  RandomStreams* streams_;
};

}  // namespace cairn
