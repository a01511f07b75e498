// Floating point operations of training a transformer: the one count behind the planner's, the report's and
// the trainer's TFLOPs.
//
// A product of (m × k) by (k × n) is 2 m n k; norms, activations and softmax count nothing. Model FLOPs are
// those of the forward pass, and twice as many of the backward; hardware FLOPs are these and what is computed
// again in the backward. The output layer never is. Of attention's scores the programs count differently: the
// Megatron-LM paper (arXiv 2104.04473, and BigScience's log) all pairs of positions, Megatron-LM's
// num_floating_point_operations the half that the causal mask leaves.
#pragma once

namespace cairn {

// Widths that need not be those of GPT: of all query heads, of all key heads (as many of values), inside the
// MLP.
struct TransformerSize {
  double layers = 0;
  double hidden = 0;
  double queries = 0;
  double keys = 0;
  double ffn = 0;
  bool gated = false;             // two matrices into the MLP, as LLaMA has
  double seq = 0;                 // tokens of a sample
  double vocab = 0;               // rows of the output layer, as padded
  double recomputed_layers = -1;  // of Recomputed::kLayers; below 0: all
};

enum class Recomputed { kNothing, kAttention, kLayers };

inline constexpr double kAllPairs = 1, kCausalPairs = 0.5;  // of positions

struct Flops {
  double model = 0;
  double hardware = 0;
};

// Of one step of so many samples. With ffn = 4h, queries = keys = h, all pairs and recomputed layers
// `hardware` is 96·B·s·l·h²·(1 + s/6h + v/16lh), the paper's formula; with causal pairs `model` is
// 72·B·s·l·h²·(1 + s/12h + v/12lh).
inline Flops StepFlops(const TransformerSize& m, double samples, Recomputed recomputed, double pairs) {
  const double tokens = samples * m.seq;
  const double matrices = 2 * m.hidden * (m.queries + m.keys) + (m.gated ? 3 : 2) * m.hidden * m.ffn;
  const double products = 2 * tokens * m.layers * matrices;
  const double attention =
      2 * tokens * m.layers * 2 * pairs * m.seq * m.queries;  // scores, and values by them
  const double head = 2 * tokens * m.hidden * m.vocab;
  const double model = 3 * (products + attention + head);
  const double share = m.recomputed_layers < 0 ? 1 : m.recomputed_layers / m.layers;
  const double again = recomputed == Recomputed::kLayers      ? (products + attention) * share
                       : recomputed == Recomputed::kAttention ? attention
                                                              : 0;
  return {.model = model, .hardware = model + again};
}

}  // namespace cairn
