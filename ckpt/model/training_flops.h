// Floating point operations of training a transformer: the one count behind the planner's, the report's and
// the trainer's TFLOPs.
//
// A product of (m × k) by (k × n) is 2 m n k; norms, activations and softmax count nothing. Model FLOPs are
// those of the forward pass, and twice as many of the backward; hardware FLOPs add the operations that the
// backward computes again. The output layer never is. Of a mixture only the experts count that a token
// visits. The programs count attention's scores differently: the Megatron-LM paper (arXiv 2104.04473, and
// BigScience's log) all pairs of positions, Megatron-LM's num_floating_point_operations the half that the
// causal mask leaves.
#pragma once

#include "ckpt/model/shape.h"

namespace cairn {

// The part that the backward pass computes again: nothing, the scores of attention, or whole layers.
enum class Recomputation { kNone, kSelective, kFull };

inline constexpr double kAllPairs = 1, kCausalPairs = 0.5;  // of positions

struct Flops {
  double model = 0;
  double hardware = 0;
};

// The operations of one step of `samples` samples of shape.seq tokens each; the output layer is padded for
// `tp`. Recomputation::kFull recomputes all layers, or `recomputed_layers` of them if it is not negative.
// With ffn = 4h, queries = keys = h, all pairs and recomputed layers `hardware` is 96·B·s·l·h²·(1 + s/6h +
// v/16lh), the paper's formula; with causal pairs `model` is 72·B·s·l·h²·(1 + s/12h + v/12lh).
inline Flops StepFlops(const ModelShape& shape, int64_t tp, double samples, Recomputation recompute,
                       double pairs, double recomputed_layers = -1) {
  const auto seq = static_cast<double>(shape.seq), layers = static_cast<double>(shape.layers);
  const double tokens = samples * seq;
  const double products = 2 * tokens * layers * shape.ActiveLayerMatrices();
  const double attention =
      2 * tokens * layers * pairs * seq *
      (shape.QueryWidth() + shape.heads * shape.ValueHeadDim());  // scores, and values by them
  const double head = 2 * tokens * shape.hidden * shape.PaddedVocab(tp);
  const double model = 3 * (products + attention + head);
  const double share = recomputed_layers < 0 ? 1 : recomputed_layers / layers;
  const double again = recompute == Recomputation::kFull        ? (products + attention) * share
                       : recompute == Recomputation::kSelective ? attention
                                                                : 0;
  return {.model = model, .hardware = model + again};
}

}  // namespace cairn
