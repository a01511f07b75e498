// One pipeline stage of a GPT-2 style decoder: learned positions, layer norm before each block, GELU, output
// layer tied to the embedding (or not).
//
// b samples of s tokens, hidden size h, vocabulary V. With one stage it is the whole model.
#pragma once

#include <optional>

#include "runtime/comm/parallel_dims.h"
#include "runtime/config/train_config.h"
#include "runtime/model/attention.h"
#include "runtime/model/cross_entropy.h"
#include "runtime/model/flat_parameters.h"
#include "runtime/model/layer_norm.h"
#include "runtime/model/mlp.h"

namespace cairn {

struct TransformerLayer {
  LayerNorm input_norm;
  Attention attention;
  LayerNorm post_attention_norm;
  Mlp mlp;
  double dropout;

  at::Tensor forward(const at::Tensor& x, bool training) const;  // [b, s, h] -> [b, s, h]
};

class GptStage {
 public:
  // `parameters` and `streams` must outlive the stage.
  GptStage(const TrainConfig& config, const ParallelDims& dims, const FlatParameters& parameters,
           RandomStreams& streams);

  // `input`: int64 tokens [b, s] on the first stage, activations [b, s, h] of the stage before on the others.
  // Gives activations [b, s, h].
  at::Tensor forward(const at::Tensor& input, bool training) const;

  // Last stage only. `hidden` is forward's result.
  at::Tensor Logits(const at::Tensor& hidden) const;  // [b * s, V / tp], padded
  at::Tensor Loss(const at::Tensor& hidden,
                  const at::Tensor& labels) const;  // mean over labels [b, s]; fp32 scalar

  bool is_first() const { return embedding_.has_value(); }
  bool is_last() const { return final_norm_.has_value(); }

 private:
  std::optional<VocabularyParallelEmbedding> embedding_;
  std::vector<TransformerLayer> layers_;
  std::optional<LayerNorm> final_norm_;
  std::optional<ColumnParallelLinear> head_;
  VocabularyShard head_shard_;
  ProcessGroup tp_;
  double embedding_dropout_;
  bool recompute_;
  RandomStreams* streams_;
};

}  // namespace cairn
