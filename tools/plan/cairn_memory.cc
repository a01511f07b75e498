#include "tools/plan/cairn_memory.h"

#include <algorithm>
#include <cmath>

#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

// Bytes of activations that are kept for backward, by precision and kind of model.
struct LayerBytes {
  double
      whole;   // an element of tokens * hidden, on each rank: inputs of norms and products, residuals, masks
  double cut;  // an element of what TP cuts, see CutWidth
  double
      rest;  // an element of tokens * hidden beside all layers: embedding, last norm, gradients on their way
};
constexpr LayerBytes kSingle = {21, 4, 28};
constexpr LayerBytes kHalf = {11, 2.5, 36};
// Gated models are trained without dropout: no masks.
constexpr LayerBytes kGatedSingle = {16, 4, 28};
constexpr LayerBytes kGatedHalf = {8, 2, 36};

LayerBytes BytesOf(const ModelShape& shape, const RunSetup& setup) {
  if (shape.has.gate) return setup.mixed() ? kGatedHalf : kGatedSingle;
  return setup.mixed() ? kHalf : kSingle;
}

// Elements a token that a layer keeps and TP cuts. Of a plain GPT's attention query, key, value and context,
// each as wide as all query heads, as dropout's kernel repeats what groups share. Of a gated model's the
// product, query and key once more when they have rotated, and the context. Of the MLP: both sides of the
// activation.
double CutWidth(const ModelShape& shape) {
  const auto queries = static_cast<double>(shape.QueryWidth()),
             keys = static_cast<double>(shape.KeyValueWidth());
  const auto ffn = static_cast<double>(shape.Ffn());
  return shape.has.gate ? 3 * queries + 3 * keys + 3 * ffn : 4 * queries + 2 * ffn;
}

// Elements, by the trainer's flags where nothing is given: --stage3-max-live-parameters, and
// --reduce-bucket-size for gradients on their way to their owner.
constexpr double kLive = 1e9;
constexpr double kLeaving = 16 << 20;
constexpr double kScoreBytes = 12;  // probabilities, dropout mask and product, fp32 whatever the precision

class Rank {
 public:
  Rank(const ModelShape& shape, const RunSetup& setup, double base_gb)
      : shape_(shape),
        setup_(setup),
        base_gb_(base_gb),
        tp_(static_cast<double>(setup.tp)),
        elements_(static_cast<double>(setup.micro_batch) * shape.seq * shape.hidden),
        element_(setup.mixed() ? 2 : 4),
        bytes_(BytesOf(shape, setup)) {}

  // `embedding`: the stage looks tokens up; `head`: it has output layer and loss.
  StageMemory Of(double layers, bool embedding, bool head, int64_t micro_batches) const {
    const double table = shape_.PaddedVocab(setup_.tp) / tp_ * shape_.hidden;
    double params = layers * shape_.LayerParams() / tp_;
    if (embedding) params += table + shape_.PositionParams();
    if (head && (!embedding || !shape_.tied)) params += table;
    const auto share = [&](int from) { return setup_.zero >= from ? 1.0 / setup_.dp : 1.0; };
    StageMemory memory;
    memory.parameters = params * element_ * share(3) / kGiga;
    if (setup_.zero == 3) memory.parameters += std::min(params, kLive) * element_ / kGiga;
    memory.gradients = params * 4 * share(2) / kGiga;
    if (!setup_.offload_optimizer) memory.optimizer = params * (setup_.mixed() ? 12 : 8) * share(1) / kGiga;
    const double in_flight = std::min(micro_batches, setup_.MicroBatches()) * layers * Kept();
    memory.in_flight = in_flight / kGiga;
    memory.activations = Working(head, table);
    // The loss's gradient has a window beside all activations; the last windows leave when those are gone.
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
  // Fused attention, which keeps no scores, is what runs without dropout, and on a GPU in half precision.
  bool KeepsScores() const { return !shape_.has.gate && (setup_.on_cpu || !setup_.mixed()); }
  double Kept() const {
    return setup_.recompute == Recomputation::kFull ? elements_ * element_ : LayerActivations();
  }

  // Logits and their gradient, or one layer computed again. The gradient of a weight is added where it stays,
  // but a GPU makes that of a half-precision one apart, and CPUs multiply no fp16.
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
  double elements_;  // of one micro-batch's activations
  double element_;   // bytes of a weight
  LayerBytes bytes_;
};

}  // namespace

PipelineMemory CairnMemoryOf(const ModelShape& shape, const RunSetup& setup, double base_gb) {
  const Rank rank(shape, setup, base_gb);
  const StageLayers layers = PlannedStages(shape, setup);
  if (setup.pp == 1) {
    const StageMemory only = rank.Of(layers.first, true, true, 1);
    return {only, only, only};
  }
  PipelineMemory memory;
  memory.first = rank.Of(layers.first, true, false, setup.pp);
  memory.middle = setup.pp > 2 ? rank.Of(layers.middle, false, false, setup.pp - 1) : memory.first;
  memory.last = rank.Of(layers.last, false, true, 1);
  return memory;
}

}  // namespace cairn
