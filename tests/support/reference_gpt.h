// The model once more, from libtorch's own operators and autograd, tensor by tensor: what ours is compared
// with.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <string>

#include "runtime/config/model_spec.h"

namespace cairn {

// Parameters by name, all of the type that is computed in; the vocabulary may be padded.
using Leaves = std::map<std::string, at::Tensor>;

inline at::Tensor ReferenceLinear(const Leaves& p, const std::string& name, const at::Tensor& x) {
  const auto bias = p.find(name + ".bias");
  return at::linear(x, p.at(name + ".weight"), bias == p.end() ? at::Tensor() : bias->second);
}

inline at::Tensor ReferenceNorm(const ModelSpec& spec, const Leaves& p, const std::string& name,
                                const at::Tensor& x) {
  const at::Tensor weight = p.at(name + ".weight");
  if (spec.normalization == Normalization::kRmsNorm)
    return at::rms_norm(x, {x.size(-1)}, weight, spec.norm_epsilon);
  return at::layer_norm(x, {x.size(-1)}, weight, p.at(name + ".bias"), spec.norm_epsilon);
}

// Megatron's get_ltor_masks_and_position_ids: of each token [b, s] its position, and the first that it sees.
struct ReferencePlaces {
  at::Tensor positions, first_seen;
};
inline ReferencePlaces ReferencePlacesOf(const TrainConfig& config, const at::Tensor& tokens) {
  const at::Tensor begins = at::zeros_like(tokens);
  for (int64_t sample = 0; sample < tokens.size(0); ++sample)
    for (int64_t i = 0; i < tokens.size(1); ++i)
      if (tokens[sample][i].item<int64_t>() == config.eod) begins[sample].slice(0, i + 1).fill_(i + 1);
  const at::Tensor all = at::zeros_like(tokens);
  return {at::arange(tokens.size(1)) - (config.reset_position_ids ? begins : all),
          config.reset_attention_mask ? begins : all};
}

// Halves of the first elements of each head as one complex number a pair. x [b, heads, s, d].
inline at::Tensor ReferenceRotation(const ModelSpec& spec, const at::Tensor& x, const at::Tensor& positions) {
  const int64_t pairs = spec.RotatedPairs(), d = x.size(3);
  const at::Tensor power = at::arange(pairs, at::kDouble) / static_cast<double>(pairs);
  const at::Tensor angle =
      positions.to(at::kDouble).view({x.size(0), 1, -1, 1}) * at::pow(spec.rotary.base, -power);
  const at::Tensor turned =
      at::complex(x.narrow(3, 0, pairs).to(at::kDouble), x.narrow(3, pairs, pairs).to(at::kDouble)) *
      at::polar(at::ones_like(angle), angle);
  return at::cat({at::real(turned).to(x.scalar_type()), at::imag(turned).to(x.scalar_type()),
                  x.narrow(3, 2 * pairs, d - 2 * pairs)},
                 3);
}

// What is added to the scores [b, heads, s, s].
inline at::Tensor ReferenceBias(const ModelSpec& spec, int layer, const at::Tensor& first_seen) {
  const int64_t s = first_seen.size(1);
  const at::Tensor ahead = at::arange(s).unsqueeze(0) - at::arange(s).unsqueeze(1);
  at::Tensor bias = at::zeros({1, s, s});
  if (spec.position == Position::kAlibi) {  // of a power of two of heads
    const int64_t heads = spec.shape.heads;
    bias = at::pow(2.0, -8.0 * at::arange(1, heads + 1, at::kFloat) / heads).view({-1, 1, 1}) * ahead;
  }
  at::Tensor unseen = ahead.gt(0);
  if (const int64_t window = spec.WindowOf(layer); window > 0)
    unseen = at::logical_or(unseen, ahead.le(-window));
  unseen = at::logical_or(unseen, at::arange(s) < first_seen.view({-1, 1, s, 1}));
  return bias.masked_fill(unseen, -INFINITY);
}

inline at::Tensor ReferenceAttention(const ModelSpec& spec, const Leaves& p, int layer, const at::Tensor& x,
                                     const ReferencePlaces& places) {
  const std::string name = fmt::format("layers.{}.attention", layer);
  const int64_t b = x.size(0), s = x.size(1), heads = spec.shape.heads;
  const auto part = [&](const char* which, bool rotates) {
    at::Tensor y = ReferenceLinear(p, name + "." + which, x).view({b, s, -1, spec.shape.head_dim});
    if (rotates && spec.shape.has.query_key_norm)
      y = ReferenceNorm(spec, p, fmt::format("{}.{}_norm", name, which), y);
    y = y.transpose(1, 2);
    if (rotates && spec.position == Position::kRotary) y = ReferenceRotation(spec, y, places.positions);
    return y.repeat_interleave(heads / y.size(1), 1);
  };
  const at::Tensor q = part("query", true), k = part("key", true), v = part("value", false);
  double scale = spec.attention_scale > 0 ? spec.attention_scale : 1 / std::sqrt(double(q.size(3)));
  if (spec.attention_scale_by_layer) scale /= layer + 1;
  const at::Tensor scores =
      at::matmul(q, k.transpose(2, 3)) * scale + ReferenceBias(spec, layer, places.first_seen);
  return ReferenceLinear(
      p, name + ".output",
      at::matmul(scores.softmax(-1).to(v.scalar_type()), v).transpose(1, 2).reshape({b, s, -1}));
}

inline at::Tensor ReferenceActivation(Activation activation, const at::Tensor& x) {
  if (activation == Activation::kGelu) return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0)));
  if (activation == Activation::kGeluTanh) return at::gelu(x, "tanh");
  if (activation == Activation::kRelu) return x.clamp_min(0);
  TORCH_CHECK(activation == Activation::kSilu, "not in the reference");
  return x * x.sigmoid();
}

inline at::Tensor ReferenceMlp(const ModelSpec& spec, const Leaves& p, const std::string& name,
                               const at::Tensor& x) {
  const at::Tensor up = ReferenceLinear(p, name + ".up", x);
  const at::Tensor inner =
      spec.shape.has.gate ? ReferenceActivation(spec.activation, ReferenceLinear(p, name + ".gate", x)) * up
                          : ReferenceActivation(spec.activation, up);
  return ReferenceLinear(p, name + ".down", inner);
}

inline at::Tensor ReferenceLoss(const TrainConfig& config, const Leaves& p, const at::Tensor& tokens,
                                const at::Tensor& labels) {
  const ModelSpec spec = SpecOf(config);
  const ReferencePlaces places = ReferencePlacesOf(config, tokens);
  at::Tensor x = at::embedding(p.at("embedding.word.weight"), tokens);
  if (spec.shape.has.embedding_norm) x = ReferenceNorm(spec, p, "embedding.norm", x);
  if (spec.shape.has.positions) x = x + at::embedding(p.at("embedding.position.weight"), places.positions);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    const at::Tensor normed = ReferenceNorm(spec, p, prefix + "input_norm", x);
    const at::Tensor y =
        (spec.residual_behind_norm ? normed : x) + ReferenceAttention(spec, p, layer, normed, places);
    const at::Tensor middle =
        ReferenceNorm(spec, p, prefix + "post_attention_norm", spec.parallel_residual ? x : y);
    x = (spec.residual_behind_norm ? middle : y) + ReferenceMlp(spec, p, prefix + "mlp", middle);
  }
  const std::string head = spec.shape.tied ? "embedding.word.weight" : "output.weight";
  at::Tensor logits = at::matmul(ReferenceNorm(spec, p, "final_norm", x), p.at(head).t());
  logits = logits.narrow(2, 0, config.vocab_size).reshape({-1, config.vocab_size}).to(at::kFloat);
  return at::cross_entropy_loss(logits, labels.view({-1}), {}, at::Reduction::Mean, /*ignore_index=*/-1);
}

}  // namespace cairn
