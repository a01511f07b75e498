// The shape of a decoder: its sizes and its modules. Conversion, training, planning and reports
// share it; tensors (canonical_modules.h), floating point operations (training_flops.h) and memory follow
// from it.
#pragma once

#include <compare>
#include <cstdint>

#include "ckpt/model/decoder_modules.h"

namespace cairn {

// Parameters of a layer, by how ranks divide them. A router's correction is a buffer and not counted.
struct ParameterCounts {
  double all = 0;
  double matrices = 0;
  double whole = 0;    // matrices that TP does not cut
  double experts = 0;  // cut by EP and ETP
  double expert_matrices = 0;
};

struct ModelShape {
  int64_t layers = 0;      // without the next ones
  int64_t mtp_layers = 0;  // of multi-token prediction
  int64_t hidden = 0;
  int64_t heads = 0;     // of queries
  int64_t kv_heads = 0;  // divides heads; 0: heads
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t ffn = 0;       // width inside the MLP; 0: 4 * hidden
  // Multi-head latent attention: ranks of the down projections of queries, and of keys and values; 0:
  // none.
  int64_t query_rank = 0;
  int64_t key_value_rank = 0;
  int64_t rotated_dim = 0;     // elements of a head that latent attention rotates
  int64_t value_head_dim = 0;  // 0: head_dim
  // Gated delta nets: their heads, the elements of one, and the tokens that their convolution sees; 0: none.
  int64_t delta_key_heads = 0;  // divides delta_value_heads
  int64_t delta_value_heads = 0;
  int64_t delta_key_dim = 0;
  int64_t delta_value_dim = 0;
  int64_t convolution = 0;
  int64_t experts = 0;            // of a layer that is a mixture; 0: the model has none
  int64_t expert_ffn = 0;         // width inside an expert
  int64_t shared_ffn = 0;         // and inside the expert that every token visits
  int64_t experts_per_token = 0;  // that the router chooses; 0: unknown
  int64_t seq = 2048;             // tokens of a sample
  int64_t vocab = 0;              // true size
  int64_t positions = 0;          // rows of the learned position embedding; 0: seq
  int64_t vocab_multiple = 128;   // Megatron's make-vocab-size-divisible-by; 0: the vocabulary is not padded
  bool tied = true;               // the output layer is the embedding
  DecoderModules modules;

  auto operator<=>(const ModelShape&) const = default;

  int64_t KvHeads() const { return kv_heads > 0 ? kv_heads : heads; }
  int64_t HeadDim() const { return head_dim > 0 ? head_dim : hidden / heads; }
  int64_t UnrotatedDim() const { return HeadDim() - rotated_dim; }
  int64_t ValueHeadDim() const { return value_head_dim > 0 ? value_head_dim : HeadDim(); }
  int64_t KeyValueUpDim() const { return UnrotatedDim() + ValueHeadDim(); }
  int64_t QueryWidth() const { return heads * HeadDim(); }
  int64_t KeyValueWidth() const { return KvHeads() * HeadDim(); }
  int64_t Ffn() const { return ffn > 0 ? ffn : 4 * hidden; }
  // The MLP has a gate, or the experts if all layers are mixtures.
  bool IsGated() const { return modules.Has("mlp.gate") || modules.Has("mlp.experts.gate"); }
  // Layers of multi-token prediction are counted on after the others.
  int64_t AllLayers() const { return layers + mtp_layers; }
  bool IsMtp(int layer) const { return layer >= layers && layer < AllLayers(); }
  int64_t Positions() const { return positions > 0 ? positions : seq; }
  // Rows of the embedding in memory: padded to a multiple of vocab_multiple * tp, as Megatron does.
  int64_t PaddedVocab(int64_t tp) const {
    const int64_t unit = vocab_multiple * tp;
    return unit == 0 ? vocab : (vocab + unit - 1) / unit * unit;
  }
  ParameterCounts CountsOf(const ModuleSet& layer) const;
  // Parameters of a layer, and of its matrices without those of experts that a token does not visit, if the
  // model says how many it does: 12h² + 13h and 12h² of a plain GPT. The mean if layers differ.
  double LayerParams() const;
  double ActiveLayerMatrices() const;
  double EmbeddingParams() const { return static_cast<double>(vocab) * hidden; }
  double PositionParams() const {
    return modules.Has("embedding.position") ? static_cast<double>(Positions()) * hidden : 0;
  }
  // All parameters, the vocabulary unpadded, tied weights counted once.
  double TotalParams() const;
  // Those that a token visits.
  double ActiveParams() const;
};

// Models with more are refused: of every size, and of layers.
inline constexpr int64_t kMaxModelSize = int64_t{1} << 31, kMaxLayers = 1 << 16;
// In a stored name, this number or a higher one is not that of an expert.
inline constexpr uint64_t kMaxExperts = 1 << 20;

}  // namespace cairn
