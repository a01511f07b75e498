// The model once more, from libtorch's own operators and autograd, tensor by tensor: what ours is compared
// with.
#pragma once

#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>

#include "runtime/config/train_config.h"

namespace cairn {

// Parameters by name, all of the type that is computed in; the vocabulary may be padded.
using Leaves = std::map<std::string, at::Tensor>;

inline at::Tensor ReferenceLinear(const Leaves& p, const std::string& name, const at::Tensor& x) {
  return at::linear(x, p.at(name + ".weight"), p.at(name + ".bias"));
}

inline at::Tensor ReferenceNorm(const Leaves& p, const std::string& name, const at::Tensor& x) {
  return at::layer_norm(x, {x.size(-1)}, p.at(name + ".weight"), p.at(name + ".bias"), 1e-5);
}

inline at::Tensor ReferenceAttention(const Leaves& p, const std::string& name, const at::Tensor& x,
                                     int heads) {
  const int64_t b = x.size(0), s = x.size(1);
  const auto part = [&](const char* which) {
    return ReferenceLinear(p, name + "." + which, x).view({b, s, heads, -1}).transpose(1, 2);
  };
  const at::Tensor q = part("query"), k = part("key"), v = part("value");
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  scores = scores.masked_fill(at::ones({s, s}, at::kBool).triu(1), -INFINITY);
  return ReferenceLinear(p, name + ".output",
                         at::matmul(scores.softmax(-1), v).transpose(1, 2).reshape({b, s, -1}));
}

inline at::Tensor ReferenceLoss(const TrainConfig& config, const Leaves& p, const at::Tensor& tokens,
                                const at::Tensor& labels) {
  at::Tensor x = at::embedding(p.at("embedding.word.weight"), tokens) +
                 p.at("embedding.position.weight").narrow(0, 0, tokens.size(1));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    x = x + ReferenceAttention(p, prefix + "attention", ReferenceNorm(p, prefix + "input_norm", x),
                               config.num_attention_heads);
    const at::Tensor up =
        ReferenceLinear(p, prefix + "mlp.up", ReferenceNorm(p, prefix + "post_attention_norm", x));
    x = x + ReferenceLinear(p, prefix + "mlp.down", at::gelu(up, "tanh"));
  }
  const std::string head =
      config.untie_embeddings_and_output_weights ? "output.weight" : "embedding.word.weight";
  at::Tensor logits = at::matmul(ReferenceNorm(p, "final_norm", x), p.at(head).t());
  logits = logits.narrow(2, 0, config.vocab_size).reshape({-1, config.vocab_size}).to(at::kFloat);
  return at::cross_entropy_loss(logits, labels.view({-1}));
}

}  // namespace cairn
