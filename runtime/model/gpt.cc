// The modules own no weights: Parts builds them from views of the flat parameters, by canonical name. Query,
// key and value lie one after another there, so that one view is the fused matrix. A stage has the layers
// that the pipeline gives it; only the first has the embedding, only the last has the norm and the output
// matrix.

#include "runtime/model/gpt.h"

#include <torch/torch.h>

#include "runtime/model/recompute.h"

namespace cairn {
namespace {

using at::Tensor;

Tensor Dropout(const Tensor& x, double p, bool training) {
  return training && p > 0 ? at::dropout(x, p, true) : x;
}

// Builds the parts of a layer (or of what surrounds the layers) from the parameters under one prefix.
struct Parts {
  const TrainConfig& config;
  const FlatParameters& parameters;
  const ProcessGroup& tp;
  std::string prefix;

  Parameter View(const std::string& name) const { return parameters.View(prefix + name); }
  LayerNorm Norm(const std::string& name) const {
    return {View(name + ".weight"), View(name + ".bias"), config.layernorm_epsilon};
  }
  ColumnParallelLinear Column(const std::string& name) const {
    return {prefix + name, View(name + ".weight"), View(name + ".bias"), tp};
  }
  RowParallelLinear Row(const std::string& name) const {
    return {prefix + name, View(name + ".weight"), View(name + ".bias"), tp};
  }
  ColumnParallelLinear FusedQkv() const {
    std::vector<std::string> weights;
    std::vector<std::string> biases;
    for (const char* part : {"query", "key", "value"}) {
      weights.push_back(prefix + "attention." + part + ".weight");
      biases.push_back(prefix + "attention." + part + ".bias");
    }
    return {prefix + "attention.qkv", parameters.View(weights), parameters.View(biases), tp};
  }
};

VocabularyShard ShardOf(const FlatParameters& parameters, const std::string& name) {
  const LocalParameter& local = parameters.Local(name);
  return {static_cast<int64_t>(local.box.offset[0]), static_cast<int64_t>(local.box.extent[0])};
}

TransformerLayer MakeLayer(const Parts& parts, RandomStreams& streams) {
  const int heads = parts.config.num_attention_heads / parts.tp.size();
  return {.input_norm = parts.Norm("input_norm"),
          .attention = Attention(parts.FusedQkv(), parts.Row("attention.output"), heads,
                                 parts.config.attention_dropout, streams),
          .post_attention_norm = parts.Norm("post_attention_norm"),
          .mlp = Mlp(parts.Column("mlp.up"), parts.Row("mlp.down")),
          .dropout = parts.config.hidden_dropout};
}

}  // namespace

Tensor TransformerLayer::forward(const Tensor& x, bool training) const {
  const Tensor y = x + Dropout(attention.forward(input_norm.forward(x), training), dropout, training);
  return y + Dropout(mlp.forward(post_attention_norm.forward(y)), dropout, training);
}

GptStage::GptStage(const TrainConfig& config, const ParallelDims& dims, const FlatParameters& parameters,
                   RandomStreams& streams)
    : tp_(dims.tp),
      embedding_dropout_(config.hidden_dropout),
      recompute_(config.recompute()),
      streams_(&streams) {
  const Parts model{config, parameters, tp_, ""};
  const std::vector<int> stages = LayersPerStage(config.num_layers, dims.topology.pp);
  if (dims.at.pp == 0) {
    const VocabularyShard shard = ShardOf(parameters, "embedding.word.weight");
    embedding_.emplace(model.View("embedding.word.weight"), model.View("embedding.position.weight"),
                       shard.first_id, shard.ids, tp_);
  }
  for (int layer = 0; layer < config.num_layers; ++layer)
    if (StageOf(layer, stages) == dims.at.pp)
      layers_.push_back(MakeLayer({config, parameters, tp_, fmt::format("layers.{}.", layer)}, streams));
  if (dims.at.pp == dims.topology.pp - 1) {
    const std::string head =
        config.untie_embeddings_and_output_weights ? "output.weight" : "embedding.word.weight";
    final_norm_ = model.Norm("final_norm");
    head_.emplace("logits", model.View(head), Parameter(), tp_);
    head_shard_ = ShardOf(parameters, head);
    head_shard_.counts_padding = config.softmax_over_padding;
  }
}

Tensor GptStage::forward(const Tensor& input, bool training) const {
  Tensor x = is_first() ? Dropout(embedding_->forward(input), embedding_dropout_, training) : input;
  for (const TransformerLayer& layer : layers_) {
    const auto run = [&layer, training](const Tensor& in) { return layer.forward(in, training); };
    x = recompute_ && training ? Recompute(run, x, *streams_) : run(x);
  }
  return x;
}

Tensor GptStage::Logits(const Tensor& hidden) const {
  const Tensor logits = head_->forward(final_norm_->forward(hidden));
  return logits.view({-1, logits.size(-1)});
}

Tensor GptStage::Loss(const Tensor& hidden, const Tensor& labels) const {
  return VocabularyParallelCrossEntropy(Logits(hidden), labels.view({-1}), head_shard_, tp_);
}

}  // namespace cairn
