// Three stages stand for all: the first holds the embedding and most micro-batches, the last the output layer
// and the loss, the second holds most of those between. Each needs its states (weights, gradients and
// optimizer, each divided from its own ZeRO stage on), the activations of each micro-batch in flight, and the
// memory of the layer or the loss at work.

#include "tools/plan/memory_model.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

// Bytes a parameter. Mixed precision, Megatron-DeepSpeed (20): 16-bit gradients; fp32 master, two moments,
// and the fp32 gradient that the step works on. Megatron-LM (18, or 6 + 12/dp with its distributed optimizer,
// as its report_theoretical_memory counts): gradients accumulate in fp32; fp32 master and two moments.
struct ParameterBytes {
  double weight, gradient, optimizer;
};
ParameterBytes BytesOf(const RunSetup& setup) {
  if (!setup.mixed()) return {4, 4, 8};
  if (setup.program == Program::kMegatronLm) return {2, 4, 12};
  return {2, 2, 16};
}

// Elements a token, in hidden sizes, that attention keeps: those that TP cuts, and those that it does not.
std::pair<double, double> AttentionWidths(const ModelShape& shape, const ModuleSet& layer) {
  const double hidden = static_cast<double>(shape.hidden);
  const auto of_hidden = [&](int64_t size) { return static_cast<double>(size) / hidden; };
  const double query = of_hidden(shape.QueryWidth());
  if (!layer.Has("attention.key_value_down")) return {2 * query + 2 * of_hidden(shape.KeyValueWidth()), 0};
  // Latent attention: query and key, value and context, and the vectors that they come from.
  return {2 * query + 2 * of_hidden(shape.heads * shape.ValueHeadDim()),
          of_hidden(shape.query_rank + shape.key_value_rank + shape.rotated_dim)};
}

// The same of the MLP: both sides of the activation, the product too if there is a gate. A mixture keeps
// these of each expert that a token visits, and the vectors that reach and leave the expert.
double MlpWidth(const ModelShape& shape, const ModuleSet& layer, const RunSetup& setup) {
  const double hidden = static_cast<double>(shape.hidden);
  const auto sides = [&](const char* up, const char* gate, int64_t width) {
    return layer.Has(up) ? 2 * static_cast<double>(width) / hidden * (layer.Has(gate) ? 1.5 : 1.0) : 0;
  };
  const double visited = static_cast<double>(shape.experts_per_token);
  double width =
      sides("mlp.up", "mlp.gate", shape.Ffn()) + sides("mlp.shared.up", "mlp.shared.gate", shape.shared_ffn);
  if (layer.Has("mlp.router"))
    width += visited * (sides("mlp.experts.up", "mlp.experts.gate", shape.expert_ffn) + 2.0 * setup.etp);
  return width;
}

// Bytes of activations of one layer and one micro-batch that its backward needs: Korthikanti and others,
// "Reducing Activation Recomputation in Large Transformer Models" (2022), equations 1 to 4: with sequence
// parallelism 34 / tp bytes an element, and 5 a s / (h tp) more if the scores are kept.
double LayerActivationBytes(const ModelShape& shape, const ModuleSet& layer, const RunSetup& setup,
                            bool scores) {
  const double tp = static_cast<double>(setup.tp);
  const double hidden = static_cast<double>(shape.hidden);
  // Half-precision bytes an element of the input: norms, inputs of products and dropout masks whole on each
  // rank; attention's and the MLP's (2 each) cut by TP. Sequence parallelism cuts all of it.
  const auto [cut, latent] = AttentionWidths(shape, layer);
  const double whole = 10 + 2 * latent;
  double per_element =
      (setup.sequence_parallel ? whole / tp : whole) + 2 * (cut + MlpWidth(shape, layer, setup)) / tp;
  if (scores && !setup.flash_attention) per_element += 5.0 * shape.heads * shape.seq / (hidden * tp);
  const double elements = static_cast<double>(setup.micro_batch) * shape.seq * hidden;
  return elements * per_element * (setup.mixed() ? 1 : 2);
}

double InFlight(double most, const RunSetup& setup) {
  return std::min(most, static_cast<double>(setup.MicroBatches()));
}

// What a stage holds of the model.
struct StageShare {
  double begin = 0, layers = 0;  // from this layer on
  bool embedding = false, head = false;
  double micro_batches = 0;  // in flight at most
};

// Weights, gradients and optimizer, each divided among the replicas from its own ZeRO stage on.
StageMemory StatesOf(const RankParams& params, const ParameterBytes& bytes, const RunSetup& setup) {
  const auto gb = [&](double each, int divided_from) {
    const bool divided = setup.zero >= divided_from;
    return each / kGiga *
           (params.dense / (divided ? setup.dp : 1) +
            params.experts / (divided ? setup.ExpertReplicas() : 1));
  };
  return {.parameters = gb(bytes.weight, 3),
          .gradients = gb(bytes.gradient, 2),
          .optimizer = setup.offload_optimizer ? 0 : gb(bytes.optimizer, 1)};
}

class MegatronStage {
 public:
  MegatronStage(const ModelShape& shape, const RunSetup& setup, const MemoryConstants& constants)
      : shape_(shape), setup_(setup), constants_(constants), tp_(static_cast<double>(setup.tp)) {}

  StageMemory Of(const StageShare& share) const {
    const double table = shape_.PaddedVocab(setup_.tp) * static_cast<double>(shape_.hidden);
    const double tables = share.embedding + (share.head && (!share.embedding || !shape_.tied));
    RankParams params = ParamsOfRank(shape_, share.begin, share.layers, setup_);
    params.dense += tables * table / tp_;
    StageMemory memory = States(params);
    memory.in_flight = InFlight(share.micro_batches, setup_) * Kept(share) / kGiga;
    memory.activations = Working(share) / kGiga;
    memory.buffers = constants_.base_gb;
    return memory;
  }

 private:
  StageMemory States(const RankParams& params) const {
    const auto [weight, gradient, optimizer] = BytesOf(setup_);
    StageMemory memory = StatesOf(
        params,
        {weight * constants_.weights, gradient * constants_.weights, optimizer * constants_.optimizer},
        setup_);
    const bool whole = setup_.zero == 0 && setup_.mixed() && !setup_.offload_optimizer;
    if (whole && setup_.program == Program::kMegatronDeepSpeed)
      memory.optimizer += params.All() * constants_.unsharded / kGiga;
    return memory;
  }

  double InputBytes() const {
    return static_cast<double>(setup_.micro_batch) * shape_.seq * shape_.hidden * (setup_.mixed() ? 2 : 4);
  }

  // Bytes for one micro-batch, until its backward.
  double Kept(const StageShare& share) const {
    if (setup_.recompute == Recomputation::kFull)
      return constants_.kept * share.layers * InputBytes() / (setup_.sequence_parallel ? tp_ : 1);
    double bytes = 0;
    ForEachKind(share, [&](const ModuleSet& layer, double count) {
      bytes += count * LayerActivationBytes(shape_, layer, setup_, setup_.recompute == Recomputation::kNone);
    });
    return constants_.kept * bytes;
  }

  double Working(const StageShare& share) const {
    double layer = 0;
    ForEachKind(share, [&](const ModuleSet& kind, double) {
      layer = std::max(layer, constants_.working * LayerActivationBytes(shape_, kind, setup_, true));
    });
    const double logits = constants_.logits * (setup_.mixed() ? 1 : 1.5) * setup_.micro_batch * shape_.seq *
                          shape_.PaddedVocab(setup_.tp) / tp_;
    return share.head ? std::max(layer, logits) : layer;
  }

  void ForEachKind(const StageShare& share,
                   const std::function<void(const ModuleSet&, double)>& visit) const {
    shape_.modules.ForEachKind(static_cast<uint64_t>(share.begin),
                               static_cast<uint64_t>(share.begin + share.layers), visit);
  }

  const ModelShape& shape_;
  const RunSetup& setup_;
  const MemoryConstants& constants_;
  double tp_;
};

// Bytes of activations that are kept for backward, by precision and kind of model.
struct LayerBytes {
  double whole;  // an element of tokens * hidden that every rank has: inputs of norms and products, masks
  double cut;    // an element that TP cuts, see CutWidth
  double rest;   // an element of tokens * hidden outside the layers: embedding, last norm, gradients
};
constexpr LayerBytes kSingle = {21, 4, 28};
constexpr LayerBytes kHalf = {11, 2.5, 36};
// Gated models are trained without dropout: no masks.
constexpr LayerBytes kGatedSingle = {16, 4, 28};
constexpr LayerBytes kGatedHalf = {8, 2, 36};

LayerBytes LayerBytesOf(const ModelShape& shape, const RunSetup& setup) {
  if (shape.IsGated()) return setup.mixed() ? kGatedHalf : kGatedSingle;
  return setup.mixed() ? kHalf : kSingle;
}

// Elements a token that a layer keeps and TP cuts. In attention with learned positions: query, key, value and
// context, each as wide as all query heads, because dropout's kernel repeats shared keys and values. With
// rotary ones: the product, the rotated query and key, and the context. In the MLP: both sides of the
// activation.
double CutWidth(const ModelShape& shape) {
  const auto queries = static_cast<double>(shape.QueryWidth()),
             keys = static_cast<double>(shape.KeyValueWidth());
  const auto ffn = static_cast<double>(shape.Ffn());
  const double attention = shape.modules.Has("embedding.position") ? 4 * queries : 3 * queries + 3 * keys;
  return attention + (shape.IsGated() ? 3 : 2) * ffn;
}

// Elements, by the defaults of the trainer's flags: --stage3-max-live-parameters, and --reduce-bucket-size
// for gradients on their way to their owner.
constexpr double kLive = 1e9;
constexpr double kLeaving = 16 << 20;
constexpr double kScoreBytes = 12;  // probabilities, dropout mask and product, fp32 whatever the precision

// The tensors of one rank of `cairn train`: its own layout, counted from its code and checked against
// it on CPUs (tests/interop/test_plan_memory.py). Gradients in fp32 on every rank, master and moments cut by
// ZeRO, attention with dropout through kept probabilities. Full or no recomputation,
// one chunk a stage.
class CairnRank {
 public:
  CairnRank(const ModelShape& shape, const RunSetup& setup, double base_gb)
      : shape_(shape),
        setup_(setup),
        base_gb_(base_gb),
        tp_(static_cast<double>(setup.tp)),
        layer_params_(shape.LayerParams()),
        elements_(static_cast<double>(setup.micro_batch) * shape.seq * shape.hidden),
        element_(setup.mixed() ? 2 : 4),
        bytes_(LayerBytesOf(shape, setup)) {}

  StageMemory Of(const StageShare& share) const {
    const double table = shape_.PaddedVocab(setup_.tp) / tp_ * shape_.hidden;
    double params = share.layers * layer_params_ / tp_;
    if (share.embedding) params += table + shape_.PositionParams();
    if (share.head && (!share.embedding || !shape_.tied)) params += table;
    StageMemory memory = StatesOf({.dense = params}, {element_, 4, setup_.mixed() ? 12.0 : 8.0}, setup_);
    if (setup_.zero == 3) memory.parameters += std::min(params, kLive) * element_ / kGiga;
    const double in_flight = InFlight(share.micro_batches, setup_) * share.layers * Kept();
    memory.in_flight = in_flight / kGiga;
    memory.activations = Working(share.head, table);
    // The loss's gradient has a window in addition to all activations; the last windows leave after those.
    if (setup_.zero >= 2)
      memory.activations = std::max(memory.activations + table * 4,
                                    std::min(params, kLeaving + table) * 4 + LayerActivations() - in_flight);
    memory.activations /= kGiga;
    memory.buffers = base_gb_;
    return memory;
  }

 private:
  double LayerActivations() const {
    const double tokens = static_cast<double>(setup_.micro_batch) * static_cast<double>(shape_.seq);
    const double scores = tokens * static_cast<double>(shape_.seq * shape_.heads);
    return elements_ * bytes_.whole + tokens * CutWidth(shape_) * bytes_.cut / tp_ +
           (KeepsScores() ? scores * kScoreBytes / tp_ : 0);
  }
  // Fused attention, which keeps no scores, runs without dropout, and on a GPU in half precision.
  bool KeepsScores() const { return !shape_.IsGated() && (setup_.on_cpu || !setup_.mixed()); }
  double Kept() const {
    return setup_.recompute == Recomputation::kFull ? elements_ * element_ : LayerActivations();
  }

  // Logits and their gradient, or one layer computed again. The gradient of a weight is added in place, but a
  // GPU computes that of a half-precision weight separately, and CPUs cannot multiply fp16.
  double Working(bool head, double table) const {
    const double logits =
        static_cast<double>(setup_.micro_batch) * shape_.seq * shape_.PaddedVocab(setup_.tp) / tp_;
    double work = head ? 2 * logits * element_ : 0;
    if (head && !setup_.on_cpu && setup_.mixed()) work += table * 4;
    if (head && setup_.on_cpu && setup_.precision == Precision::kFp16) work += logits * 4;
    if (setup_.recompute == Recomputation::kFull) work = std::max(work, LayerActivations());
    return work + elements_ * bytes_.rest;
  }

  const ModelShape& shape_;
  const RunSetup& setup_;
  double base_gb_;
  double tp_;
  double layer_params_;
  double elements_;  // of one micro-batch's activations
  double element_;   // bytes of a weight
  LayerBytes bytes_;
};

template <typename Stage>
PipelineMemory StagesOf(const ModelShape& shape, const RunSetup& setup, const Stage& stage) {
  const StageLayers layers = PlannedStages(shape, setup);
  if (setup.pp == 1) {
    const StageMemory only = stage.Of({0, layers.first, true, true, 1});
    return {only, only, only};
  }
  // 1F1B: stage i holds pp - i micro-batches; interleaving adds the warm-up of its further chunks.
  const double chunks = static_cast<double>(setup.virtual_stages);
  const double more = chunks > 1 ? (setup.pp - 1) / chunks : 0;
  const double last = std::max(0.0, static_cast<double>(shape.layers) - layers.last);
  PipelineMemory memory;
  memory.first = stage.Of({0, layers.first, true, false, setup.pp + more});
  memory.middle = setup.pp > 2 ? stage.Of({layers.first, layers.middle, false, false, setup.pp - 1 + more})
                               : memory.first;
  memory.last = stage.Of({last, layers.last, false, true, 1 + more});
  return memory;
}

}  // namespace

PipelineMemory MemoryOf(const ModelShape& shape, const RunSetup& setup, const MemoryConstants& constants) {
  if (setup.program != Program::kCairn) return StagesOf(shape, setup, MegatronStage(shape, setup, constants));
  return StagesOf(shape, setup, CairnRank(shape, setup, setup.on_cpu ? 0 : constants.base_gb));
}

}  // namespace cairn
