// Three stages stand for all: the first holds the embedding and most micro-batches, the last the output layer
// and the loss, the second holds most of those between. Each needs its states (weights, gradients and
// optimizer, each divided from its own ZeRO stage on), what it keeps of each micro-batch in flight, and the
// memory of the layer or the loss at work. The memory of our own trainer is counted in cairn_memory.cc.

#include "tools/plan/memory_model.h"

#include <algorithm>
#include <cmath>

#include "tools/plan/cairn_memory.h"
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

// Bytes of activations of one layer and one micro-batch that its backward needs: Korthikanti and others,
// "Reducing Activation Recomputation in Large Transformer Models" (2022), equations 1 to 4: with sequence
// parallelism 34 / tp bytes an element, and 5 a s / (h tp) more where the scores are kept.
double LayerActivationBytes(const ModelShape& shape, const RunSetup& setup, bool scores) {
  const double tp = static_cast<double>(setup.tp);
  const double hidden = static_cast<double>(shape.hidden);
  const double width =
      static_cast<double>(shape.Ffn()) / hidden * (shape.has.gate ? 1.5 : 1.0);  // 4 of a plain GPT
  const double query = static_cast<double>(shape.QueryWidth()) / hidden;
  const double key_value = static_cast<double>(shape.KeyValueWidth()) / hidden;
  // Half-precision bytes an element of the input: norms, inputs of products and dropout masks whole on each
  // rank; query, key, value, context (2 each) and both sides of the activation (2 each) cut by TP.
  // Sequence parallelism cuts all of it.
  const double whole = setup.sequence_parallel ? 10 / tp : 10;
  double per_element = whole + (4 * query + 4 * key_value + 4 * width) / tp;
  if (scores && !setup.flash_attention) per_element += 5.0 * shape.heads * shape.seq / (hidden * tp);
  const double elements = static_cast<double>(setup.micro_batch) * shape.seq * hidden;
  return elements * per_element * (setup.mixed() ? 1 : 2);
}

class Stage {
 public:
  Stage(const ModelShape& shape, const RunSetup& setup, const MemoryConstants& constants)
      : shape_(shape), setup_(setup), constants_(constants), tp_(static_cast<double>(setup.tp)) {}

  // `embeddings` held (0, 1, or 2 untied in one stage); `micro_batches` in flight at most; whether it has the
  // loss.
  StageMemory Of(double layers, double embeddings, double micro_batches, bool loss) const {
    StageMemory memory;
    const double table = shape_.PaddedVocab(setup_.tp) * static_cast<double>(shape_.hidden);
    States((layers * shape_.LayerParams() + embeddings * table) / tp_, memory);
    const double in_flight = std::min(micro_batches, static_cast<double>(setup_.MicroBatches()));
    memory.in_flight = in_flight * layers * KeptBytes() / kGiga;
    memory.activations = Working(loss) / kGiga;
    memory.buffers = constants_.base_gb;
    return memory;
  }

 private:
  void States(double params, StageMemory& memory) const {
    const ParameterBytes bytes = BytesOf(setup_);
    const auto share = [&](int from) { return setup_.zero >= from ? 1.0 / setup_.dp : 1.0; };
    memory.parameters = params * bytes.weight * constants_.weights * share(3) / kGiga;
    memory.gradients = params * bytes.gradient * constants_.weights * share(2) / kGiga;
    if (setup_.offload_optimizer) return;
    memory.optimizer = params * bytes.optimizer * constants_.optimizer * share(1) / kGiga;
    if (setup_.zero == 0 && setup_.mixed() && setup_.program == Program::kMegatronDeepSpeed)
      memory.optimizer += params * constants_.unsharded / kGiga;
  }

  double InputBytes() const {
    return static_cast<double>(setup_.micro_batch) * shape_.seq * shape_.hidden * (setup_.mixed() ? 2 : 4);
  }

  // For one layer and micro-batch, until its backward.
  double KeptBytes() const {
    if (setup_.recompute == Recomputation::kFull)
      return constants_.kept * InputBytes() / (setup_.sequence_parallel ? tp_ : 1);
    return constants_.kept * LayerActivationBytes(shape_, setup_, setup_.recompute == Recomputation::kNone);
  }

  double Working(bool loss) const {
    const double layer = constants_.working * LayerActivationBytes(shape_, setup_, true);
    const double logits = constants_.logits * (setup_.mixed() ? 1 : 1.5) * setup_.micro_batch * shape_.seq *
                          shape_.PaddedVocab(setup_.tp) / tp_;
    return loss ? std::max(layer, logits) : layer;
  }

  const ModelShape& shape_;
  const RunSetup& setup_;
  const MemoryConstants& constants_;
  double tp_;
};

}  // namespace

PipelineMemory MemoryOf(const ModelShape& shape, const RunSetup& setup, const MemoryConstants& constants) {
  if (setup.program == Program::kCairn)
    return CairnMemoryOf(shape, setup, setup.on_cpu ? 0 : constants.base_gb);
  const Stage stage(shape, setup, constants);
  const StageLayers layers = PlannedStages(shape, setup);
  const double untied = shape.tied ? 0 : 1;
  if (setup.pp == 1) {
    const StageMemory only = stage.Of(layers.first, 1 + untied, 1, true);
    return {only, only, only};
  }
  // 1F1B: stage i holds pp - i micro-batches; interleaving adds the warm-up of its further chunks.
  const double chunks = static_cast<double>(setup.virtual_stages);
  const double more = chunks > 1 ? (setup.pp - 1) / chunks : 0;
  PipelineMemory memory;
  memory.first = stage.Of(layers.first, 1, setup.pp + more, false);
  memory.middle = setup.pp > 2 ? stage.Of(layers.middle, 0, setup.pp - 1 + more, false) : memory.first;
  memory.last = stage.Of(layers.last, 1, 1 + more, true);
  return memory;
}

}  // namespace cairn
