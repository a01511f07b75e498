// One pipeline stage of a decoder: norm before each block, residuals around them. A ModelSpec
// (runtime/config/model_spec.h) says the rest.
//
// b samples of s tokens, hidden size h, vocabulary V. With one stage it is the whole model.
#pragma once

#include <optional>

#include "runtime/comm/parallel_dims.h"
#include "runtime/config/model_spec.h"
#include "runtime/model/autograd/parameter_unit.h"
#include "runtime/model/autograd/recompute_plan.h"
#include "runtime/model/layers/attention.h"
#include "runtime/model/layers/cross_entropy.h"
#include "runtime/model/layers/documents.h"
#include "runtime/model/layers/mlp.h"
#include "runtime/model/norm/norm.h"
#include "runtime/model/parameters/flat_parameters.h"

namespace cairn {

struct TransformerLayer {
  Norm input_norm;
  Attention attention;
  Norm post_attention_norm;
  Mlp mlp;
  double dropout;
  RandomStreams* own_stream;  // of dropout, if this rank has rows of its own; or null
  bool parallel_residual;     // attention and MLP read the same input
  bool residual_behind_norm;  // a block's output is added to its normed input

  // [b, s, h] -> [b, s, h]
  at::Tensor forward(const at::Tensor& x, bool training, const Documents& documents) const;
  // Its two halves: what attention gives, and the layer's result from both.
  at::Tensor Attend(const at::Tensor& x, bool training, const Documents& documents) const;
  at::Tensor FeedForward(const at::Tensor& x, const at::Tensor& attended, bool training) const;
};

inline constexpr int64_t kNoLabel = -1;  // of a token whose prediction is not counted

class GptStage {
 public:
  // All must outlive the stage. `hooks`: what happens around the use of each unit of parameters; or null.
  // `chunk`: which of this rank's virtual stages (topology.h).
  GptStage(const TrainConfig& config, const ParallelDims& dims, FlatParameters& parameters,
           RandomStreams& streams, UnitHooks* hooks = nullptr, int chunk = 0);

  // `input`: int64 tokens [b, s] on the first stage, activations of the stage before on the others. Gives
  // activations [b, s, h], or this rank's rows of them [b * s / tp, h] (tensor_parallel.h).
  at::Tensor forward(const at::Tensor& input, bool training, const Documents& documents = {}) const;

  // Last stage only. `hidden` is forward's result.
  at::Tensor Logits(const at::Tensor& hidden) const;  // [b * s, V / tp], padded
  // Mean over labels [b, s]; fp32 scalar. With --eod-mask-loss over those that are not kNoLabel; 0 if there
  // are none.
  at::Tensor Loss(const at::Tensor& hidden, const at::Tensor& labels) const;

  bool is_first() const { return embedding_.has_value(); }
  bool is_last() const { return final_norm_.has_value(); }

 private:
  at::Tensor Embed(const at::Tensor& tokens, bool training, const Documents& documents) const;
  at::Tensor RunLayers(const LayerGroup& group, const at::Tensor& x, bool training,
                       const Documents& documents) const;
  at::Tensor RecomputeLayer(const TransformerLayer& layer, const at::Tensor& x,
                            const Documents& documents) const;
  at::Tensor LogitsOf(const at::Tensor& hidden) const;

  std::optional<VocabularyParallelEmbedding> embedding_;
  std::optional<Norm> embedding_norm_;
  std::optional<PositionEmbedding> positions_;
  int first_layer_ = 0;
  std::vector<TransformerLayer> layers_;
  std::optional<Norm> final_norm_;
  std::optional<ColumnParallelLinear> head_;
  VocabularyShard head_shard_;
  TensorParallel tp_;
  double embedding_dropout_;
  bool scatters_embedding_;
  bool leaves_out_labels_;
  RecomputePlan recompute_;
  RandomStreams* streams_;
  UnitHooks* hooks_;
};

// All virtual stages of this rank, in order.
std::vector<GptStage> MakeChunks(const TrainConfig& config, const ParallelDims& dims,
                                 FlatParameters& parameters, RandomStreams& streams,
                                 UnitHooks* hooks = nullptr);

}  // namespace cairn
