#include "tools/plan/cairn_memory.h"

#include <algorithm>
#include <cmath>

#include "tools/plan/stage_layers.h"

namespace cairn {
namespace {

// Bytes an element of tokens * hidden that a layer keeps for backward, by precision.
struct LayerBytes {
  double whole;  // on each rank: inputs of norms and products, residuals, dropout masks
  double cut;    // divided by TP: query, key, value, context, both sides of the activation
  double rest;   // beside all layers: embedding, last norm, gradients on their way
};
constexpr LayerBytes kSingle = {24, 48, 28};
constexpr LayerBytes kHalf = {12, 30, 36};
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
        bytes_(setup.mixed() ? kHalf : kSingle) {}

  // `embedding`: the stage looks tokens up; `head`: it has output layer and loss.
  StageMemory Of(double layers, bool embedding, bool head, int64_t micro_batches) const {
    const double table = shape_.PaddedVocab(setup_.tp) / tp_ * shape_.hidden;
    double params = layers * shape_.LayerParams() / tp_;
    if (embedding) params += table + shape_.PositionParams();
    if (head && (!embedding || !shape_.tied)) params += table;
    const double share = setup_.zero > 0 ? 1.0 / setup_.dp : 1.0;
    StageMemory memory;
    memory.parameters = params * element_ / kGiga;
    memory.gradients = params * 4 / kGiga;
    memory.optimizer = params * (setup_.mixed() ? 12 : 8) * share / kGiga;
    memory.in_flight = std::min(micro_batches, setup_.MicroBatches()) * layers * Kept() / kGiga;
    memory.activations = Working(embedding, head, table) / kGiga;
    memory.buffers = base_gb_;
    return memory;
  }

 private:
  double LayerActivations() const {
    const double seq = static_cast<double>(shape_.seq);
    const double scores = setup_.micro_batch * seq * seq * shape_.heads;
    return elements_ * (bytes_.whole + bytes_.cut / tp_) + (KeepsScores() ? scores * kScoreBytes / tp_ : 0);
  }
  // Fused attention, which keeps no scores, is what a GPU runs in half precision.
  bool KeepsScores() const { return setup_.on_cpu || !setup_.mixed(); }
  double Kept() const {
    return setup_.recompute == Recompute::kFull ? elements_ * element_ : LayerActivations();
  }

  // Logits and their gradient, or the gradient of the embedding, or one layer computed again.
  double Working(bool embedding, bool head, double table) const {
    const double logits =
        static_cast<double>(setup_.micro_batch) * shape_.seq * shape_.PaddedVocab(setup_.tp) / tp_;
    const double gradient = setup_.mixed() ? 0 : table * element_;
    double work = 0;
    if (head) work = 2 * logits * element_ + gradient;
    if (head && setup_.on_cpu && setup_.mixed())  // CPUs compute gradients of half-precision weights in fp32
      work = logits * (2 * 4 + element_) + table * 4;
    if (embedding) work = std::max(work, gradient);
    if (setup_.recompute == Recompute::kFull) work = std::max(work, LayerActivations());
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
  const StageLayers layers = StageLayersOf(shape, setup);
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
