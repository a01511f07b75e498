// The shape of a transformer, as far as size, speed and memory follow from it.
#pragma once

#include <compare>
#include <cstdint>

namespace cairn {

struct ModelShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // 0: heads
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t ffn = 0;       // width inside the MLP; 0: 4 * hidden
  int64_t seq = 2048;    // tokens of a sample
  int64_t vocab = 0;     // true size
  int64_t vocab_multiple = 128;
  bool gated = false;             // gate and up projections, as LLaMA has
  bool tied = true;               // the output layer is the embedding
  bool learned_positions = true;  // a table of seq * hidden

  auto operator<=>(const ModelShape&) const = default;

  int64_t HeadDim() const { return head_dim > 0 ? head_dim : hidden / heads; }
  int64_t QueryWidth() const { return heads * HeadDim(); }
  int64_t KeyValueWidth() const { return (kv_heads > 0 ? kv_heads : heads) * HeadDim(); }
  int64_t Ffn() const { return ffn > 0 ? ffn : 4 * hidden; }
  // In memory the vocabulary is padded to a multiple of vocab_multiple * tp, as Megatron does.
  int64_t PaddedVocab(int64_t tp) const {
    const int64_t unit = vocab_multiple * tp;
    return (vocab + unit - 1) / unit * unit;
  }
  // Parameters of the matrices of one layer.
  double LayerMatrices() const {
    const double attention = 2.0 * hidden * QueryWidth() + 2.0 * hidden * KeyValueWidth();
    return attention + (gated ? 3.0 : 2.0) * hidden * Ffn();
  }
  // Matrices, biases and norms of one layer; 12h² + 13h of a plain GPT.
  double LayerParams() const {
    const double vectors = gated ? 2.0 * hidden : 6.0 * hidden + QueryWidth() + 2.0 * KeyValueWidth() + Ffn();
    return LayerMatrices() + vectors;
  }
  double EmbeddingParams() const { return static_cast<double>(vocab) * hidden; }
  double PositionParams() const { return learned_positions ? static_cast<double>(seq) * hidden : 0; }
  // All parameters, the vocabulary unpadded, tied weights counted once.
  double TotalParams() const {
    return layers * LayerParams() + EmbeddingParams() * (tied ? 1 : 2) + PositionParams() +
           (gated ? 1.0 : 2.0) * hidden;
  }
};

}  // namespace cairn
