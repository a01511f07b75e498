// The modules own no weights: ModelBuilder makes them from views of the flat parameters, by canonical name.
// Query, key and value lie one after another there, and so do gate and up, so that one view is the fused
// matrix. A stage has the layers that the pipeline gives it; only the first has the embedding, only the last
// has the norm and the output matrix.

#include "runtime/model/gpt.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "runtime/model/autograd/dropout.h"
#include "runtime/model/autograd/recompute.h"
#include "runtime/model/layers/scattered_rows.h"

namespace cairn {
namespace {

using at::Tensor;

TensorParallel TensorParallelOf(const TrainConfig& config, const ProcessGroup& tp) {
  return {tp, config.sequence_parallel && tp.size() > 1 ? config.seq_length : 0};
}

VocabularyShard ShardOf(FlatParameters& parameters, const std::string& name) {
  const LocalParameter& local = parameters.Local(name);
  return {static_cast<int64_t>(local.box.offset[0]), static_cast<int64_t>(local.box.extent[0])};
}

// Builds the layers, the embedding and the output layer from the parameters.
class ModelBuilder {
 public:
  ModelBuilder(const TrainConfig& config, const ModelSpec& spec, FlatParameters& parameters,
               const TensorParallel& tp, RandomStreams& streams, UnitHooks* hooks)
      : config_(config), spec_(spec), parameters_(parameters), tp_(tp), streams_(streams), hooks_(hooks) {
    if (spec.position == Position::kRotary)
      rotary_ = std::make_shared<const Rotary>(spec.rotary, spec.RotatedPairs(), spec.shape.positions);
  }

  // For whole rows, or for this rank's: then ranks share the gradient.
  Norm MakeNorm(const std::string& name) const {
    return MakeNorm(name, tp_.cuts_rows() ? tp_.group : ProcessGroup());
  }
  // `shared_with`: see Norm.
  Norm MakeNorm(const std::string& name, const ProcessGroup& shared_with) const {
    const bool biased = spec_.normalization == Normalization::kLayerNorm && spec_.shape.has.norm_weight &&
                        spec_.shape.has.norm_bias;
    return {spec_.normalization, View({name}, "weight", spec_.shape.has.norm_weight),
            View({name}, "bias", biased), spec_.norm_epsilon, shared_with};
  }

  Parameter Weight(const std::string& name) const { return View({name}, "weight", true); }

  TransformerLayer MakeLayer(int layer) {
    const std::string prefix = fmt::format("layers.{}.", layer);
    std::vector<std::string> up = {prefix + "mlp.up"};
    if (spec_.shape.has.gate) up.insert(up.begin(), prefix + "mlp.gate");
    return {.input_norm = MakeNorm(prefix + "input_norm"),
            .attention = MakeAttention(prefix + "attention.", layer),
            .post_attention_norm = MakeNorm(prefix + "post_attention_norm"),
            .mlp = Mlp(Column(prefix + "mlp.up", up, spec_.shape.has.mlp_bias),
                       Row(prefix + "mlp.down", spec_.shape.has.mlp_bias), spec_.activation,
                       spec_.shape.has.gate),
            .dropout = config_.hidden_dropout,
            .own_stream = tp_.cuts_rows() ? &streams_ : nullptr,
            .parallel_residual = spec_.parallel_residual,
            .residual_behind_norm = spec_.residual_behind_norm};
  }

 private:
  // Several parameters are fused. Undefined if the model has none.
  Parameter View(const std::vector<std::string>& names, const char* kind, bool has) const {
    return has ? parameters_.View(Named(names, kind)) : Parameter();
  }
  LinearWeight Matrix(const std::vector<std::string>& names) const {
    return {parameters_.Tiles(Named(names, "weight"), config_.tiles_of_linear()), hooks_};
  }
  static std::vector<std::string> Named(std::vector<std::string> names, const char* kind) {
    for (std::string& name : names) name += fmt::format(".{}", kind);
    return names;
  }

  ColumnParallelLinear Column(const std::string& name, const std::vector<std::string>& parts,
                              bool bias) const {
    return {name, Matrix(parts), View(parts, "bias", bias), tp_};
  }
  RowParallelLinear Row(const std::string& name, bool bias) const {
    return {name, Matrix({name}), View({name}, "bias", bias), tp_};
  }

  Attention MakeAttention(const std::string& prefix, int layer) {
    const ModelShape& model = spec_.shape;
    AttentionShape shape{.heads = model.heads / tp_.group.size(),
                         .key_value_heads = model.kv_heads / tp_.group.size(),
                         .head = model.head_dim,
                         .scale = spec_.attention_scale,
                         .dropout = config_.attention_dropout,
                         .recomputed = config_.recompute_granularity == "selective"};
    if (shape.scale == 0) shape.scale = 1 / std::sqrt(static_cast<double>(model.head_dim));
    if (spec_.attention_scale_by_layer) shape.scale /= layer + 1;
    std::optional<Norm> query_norm, key_norm;
    if (spec_.shape.has.query_key_norm) query_norm = MakeNorm(prefix + "query_norm", tp_.group);
    if (spec_.shape.has.query_key_norm) key_norm = MakeNorm(prefix + "key_norm", tp_.group);
    return {shape,
            Column(prefix + "qkv", {prefix + "query", prefix + "key", prefix + "value"},
                   spec_.shape.has.query_key_value_bias),
            Row(prefix + "output", spec_.shape.has.attention_output_bias),
            std::move(query_norm),
            std::move(key_norm),
            rotary_,
            MaskOf(layer),
            streams_};
  }

  // Layers of one window share their mask.
  std::shared_ptr<const AttentionMask> MaskOf(int layer) {
    std::shared_ptr<const AttentionMask>& mask = masks_[spec_.WindowOf(layer)];
    if (mask) return mask;
    std::vector<double> slopes;
    if (spec_.position == Position::kAlibi) {
      const std::vector<double> all = AlibiSlopes(static_cast<int>(spec_.shape.heads));
      const size_t share = all.size() / tp_.group.size();
      slopes.assign(all.begin() + static_cast<int64_t>(share) * tp_.group.rank(),
                    all.begin() + static_cast<int64_t>(share) * (tp_.group.rank() + 1));
    }
    return mask = std::make_shared<const AttentionMask>(std::move(slopes), spec_.WindowOf(layer));
  }

  const TrainConfig& config_;
  const ModelSpec& spec_;
  FlatParameters& parameters_;
  const TensorParallel& tp_;
  RandomStreams& streams_;
  UnitHooks* hooks_;
  std::shared_ptr<const Rotary> rotary_;
  std::map<int64_t, std::shared_ptr<const AttentionMask>> masks_;  // by window
};

}  // namespace

Tensor TransformerLayer::Attend(const Tensor& x, bool training, const Documents& documents) const {
  return attention.forward(input_norm.forward(x), training, documents);
}

Tensor TransformerLayer::FeedForward(const Tensor& x, const Tensor& attended, bool training) const {
  const Tensor residual = residual_behind_norm ? input_norm.forward(x) : x;  // again: few models need it
  Tensor y, middle;
  if (parallel_residual) {
    y = residual + Dropout(attended, dropout, training, own_stream);
    middle = post_attention_norm.forward(x);
  } else {
    const KeepMask mask = DrawKeepMask(attended, dropout, training, own_stream);
    std::tie(y, middle) = post_attention_norm.forward(residual, attended, mask);
  }
  return (residual_behind_norm ? middle : y) + Dropout(mlp.forward(middle), dropout, training, own_stream);
}

Tensor TransformerLayer::forward(const Tensor& x, bool training, const Documents& documents) const {
  return FeedForward(x, Attend(x, training, documents), training);
}

GptStage::GptStage(const TrainConfig& config, const ParallelDims& dims, FlatParameters& parameters,
                   RandomStreams& streams, UnitHooks* hooks, int chunk)
    : tp_(TensorParallelOf(config, dims.tp)),
      embedding_dropout_(config.hidden_dropout),
      scatters_embedding_(config.scattered_embeddings && dims.tp.size() > 1),
      leaves_out_labels_(config.eod_mask_loss),
      recompute_(config, dims.tp),
      streams_(&streams),
      hooks_(hooks) {
  const ModelSpec spec = SpecOf(config);
  ModelBuilder model(config, spec, parameters, tp_, streams, hooks);
  const Result<std::vector<int>> chunks = LayersPerChunk(config.num_layers, dims.topology);
  TORCH_CHECK(chunks.ok(), chunks.status().message());
  const int part = chunk * dims.topology.pp + dims.at(Axis::kPp);
  if (part == 0) {
    const VocabularyShard shard = ShardOf(parameters, "embedding.word.weight");
    embedding_.emplace(model.Weight("embedding.word"), shard.first_id, shard.ids, tp_);
    if (spec.shape.has.embedding_norm) embedding_norm_ = model.MakeNorm("embedding.norm");
    if (spec.shape.has.positions) positions_.emplace(model.Weight("embedding.position"), tp_);
  }
  first_layer_ = std::accumulate(chunks->begin(), chunks->begin() + part, 0);
  for (int layer = first_layer_; layer < first_layer_ + chunks->at(part); ++layer)
    layers_.push_back(model.MakeLayer(layer));
  if (part == static_cast<int>(chunks->size()) - 1) {
    const std::string head = spec.shape.tied ? "embedding.word" : "output";
    final_norm_ = model.MakeNorm("final_norm");
    head_.emplace("logits", LinearWeight(model.Weight(head)), Parameter(), tp_);
    head_shard_ = ShardOf(parameters, head + ".weight");
    head_shard_.counts_padding = config.softmax_over_padding;
  }
}

std::vector<GptStage> MakeChunks(const TrainConfig& config, const ParallelDims& dims,
                                 FlatParameters& parameters, RandomStreams& streams, UnitHooks* hooks) {
  std::vector<GptStage> chunks;
  for (int chunk = 0; chunk < dims.topology.virtual_stages; ++chunk)
    chunks.emplace_back(config, dims, parameters, streams, hooks, chunk);
  return chunks;
}

Tensor GptStage::Embed(const Tensor& tokens, bool training, const Documents& documents) const {
  Tensor x = embedding_->forward(tokens);
  if (embedding_norm_) x = embedding_norm_->forward(x);
  if (positions_) x = positions_->forward(x, documents.positions);
  if (tp_.cuts_rows()) return Dropout(x, embedding_dropout_, training, streams_);
  if (!scatters_embedding_) return Dropout(x, embedding_dropout_, training);
  return OnScatteredRows(
      [&](const Tensor& rows) { return Dropout(rows, embedding_dropout_, training, streams_); }, x,
      tp_.group);
}

Tensor GptStage::forward(const Tensor& input, bool training, const Documents& documents) const {
  Tensor x = input;
  if (is_first())
    x = RunUnit(
        hooks_, kBeforeLayers, [&](const Tensor& in) { return Embed(in, training, documents); }, x);
  for (const LayerGroup& group : recompute_.Groups(static_cast<int>(layers_.size())))
    x = RunLayers(group, x, training, documents);
  return x;
}

// A layer that is recomputed alone, from an unchanged input, is recomputed inside its unit: its parameters
// are then gathered once for both. Outside of its unit nothing else holds on to the input.
Tensor GptStage::RunLayers(const LayerGroup& group, const Tensor& x, bool training,
                           const Documents& documents) const {
  const bool again = group.recomputed && training;
  const bool alone = group.end - group.begin == 1 && recompute_.keeping().plain();
  const bool inside = again && (alone || recompute_.split_layers());
  const auto run = [this, group, training, documents, inside](const Tensor& in) {
    Tensor y = in;
    for (int i = group.begin; i < group.end; ++i) {
      const TransformerLayer* layer = &layers_[static_cast<size_t>(i)];
      const auto unit = [&](const Tensor& t) {
        return inside ? RecomputeLayer(*layer, t, documents) : layer->forward(t, training, documents);
      };
      y = RunUnit(hooks_, first_layer_ + i, unit, y);
    }
    return y;
  };
  return again && !inside ? Recompute(run, x, *streams_, recompute_.keeping()) : run(x);
}

Tensor GptStage::RecomputeLayer(const TransformerLayer& layer, const Tensor& x,
                                const Documents& documents) const {
  const Keeping& keeping = recompute_.keeping();
  const bool split = recompute_.split_layers();
  const auto block = [&layer, documents, split](const Tensor& in) {
    return split ? layer.Attend(in, true, documents) : layer.forward(in, true, documents);
  };
  const Tensor attended = Recompute(block, x, *streams_, keeping);
  if (!split) return attended;
  const BlockOfMany rest = [&layer](const std::vector<Tensor>& in) {
    return layer.FeedForward(in[0], in[1], true);
  };
  return Recompute(rest, {x, attended}, *streams_, keeping);
}

Tensor GptStage::LogitsOf(const Tensor& hidden) const {
  const Tensor logits = head_->forward(final_norm_->forward(hidden));
  return logits.view({-1, logits.size(-1)});
}

Tensor GptStage::Logits(const Tensor& hidden) const {
  return RunUnit(
      hooks_, kAfterLayers, [this](const Tensor& in) { return LogitsOf(in); }, hidden);
}

Tensor GptStage::Loss(const Tensor& hidden, const Tensor& labels) const {
  return RunUnit(
      hooks_, kAfterLayers,
      [&](const Tensor& in) {
        Tensor logits = LogitsOf(in), targets = labels.view({-1});
        if (leaves_out_labels_) {
          const Tensor counted = targets.ne(kNoLabel).nonzero().view({-1});
          if (counted.numel() == 0) return logits.sum(at::kFloat) * 0;
          logits = logits.index_select(0, counted);
          targets = targets.index_select(0, counted);
        }
        return VocabularyParallelCrossEntropy(logits, targets, head_shard_, tp_.group);
      },
      hidden);
}

}  // namespace cairn
