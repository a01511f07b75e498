// The shape of a decoder: its sizes, and which parameters it has. Conversion, training, planning and reports
// share it; tensors (gpt_specs.h), floating point operations (training_flops.h) and memory follow from it.
#pragma once

#include <compare>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

// The parameters that a model has, of those that families may have. The defaults are GPT-2's.
struct GptTensors {
  bool positions = true;         // embedding.position
  bool position_offset = false;  // embedding.position_offset
  bool embedding_norm = false;
  bool norm_weight = true;  // of every norm
  bool norm_bias = true;
  bool query_key_value_bias = true;
  bool query_key_norm = false;
  bool attention_output_bias = true;
  bool gate = false;     // mlp.gate in addition to mlp.up, as in LLaMA
  bool mlp_bias = true;  // of gate, up and down
  auto operator<=>(const GptTensors&) const = default;
};

struct ModelShape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;             // of queries
  int64_t kv_heads = 0;          // divides heads; 0: heads
  int64_t head_dim = 0;          // 0: hidden / heads
  int64_t ffn = 0;               // width inside the MLP; 0: 4 * hidden
  int64_t seq = 2048;            // tokens of a sample
  int64_t vocab = 0;             // true size
  int64_t positions = 0;         // rows of the learned position embedding; 0: seq
  int64_t vocab_multiple = 128;  // Megatron's make-vocab-size-divisible-by; 0: the vocabulary is not padded
  bool tied = true;              // the output layer is the embedding
  GptTensors has;

  auto operator<=>(const ModelShape&) const = default;

  int64_t KvHeads() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t HeadDim() const { return head_dim > 0 ? head_dim : hidden / heads; }
  int64_t QueryWidth() const { return heads * HeadDim(); }
  int64_t KeyValueWidth() const { return KvHeads() * HeadDim(); }
  int64_t Ffn() const { return ffn > 0 ? ffn : 4 * hidden; }
  // Rows of the embedding in memory: padded to a multiple of vocab_multiple * tp, as Megatron does.
  int64_t PaddedVocab(int64_t tp) const {
    const int64_t unit = vocab_multiple * tp;
    return unit == 0 ? vocab : (vocab + unit - 1) / unit * unit;
  }
  // Parameters of the matrices of one layer.
  double LayerMatrices() const {
    const double attention = 2.0 * hidden * QueryWidth() + 2.0 * hidden * KeyValueWidth();
    return attention + (has.gate ? 3.0 : 2.0) * hidden * Ffn();
  }
  // Matrices, biases and norms of one layer; 12h² + 13h of a plain GPT.
  double LayerParams() const {
    const double vectors =
        has.gate ? 2.0 * hidden : 6.0 * hidden + QueryWidth() + 2.0 * KeyValueWidth() + Ffn();
    return LayerMatrices() + vectors;
  }
  double EmbeddingParams() const { return static_cast<double>(vocab) * hidden; }
  double PositionParams() const {
    return has.positions ? static_cast<double>(positions > 0 ? positions : seq) * hidden : 0;
  }
  // All parameters, the vocabulary unpadded, tied weights counted once.
  double TotalParams() const {
    return layers * LayerParams() + EmbeddingParams() * (tied ? 1 : 2) + PositionParams() +
           (has.gate ? 1.0 : 2.0) * hidden;
  }
};

inline constexpr int64_t kMaxModelSize = int64_t{1} << 31;  // limit of every size; larger ones are refused

// The sizes in a manifest's `model`; those that may be left out follow from the others. `positions` stays 0
// if `model` does not state it. Errors: InvalidArgument naming a missing, ill-typed or absurd field.
Result<ModelShape> ReadShape(const nlohmann::json& model);

// By the canonical names of a model's parameters; those of layer 0 are enough.
GptTensors TensorsAmong(const std::set<std::string_view>& names);

}  // namespace cairn
