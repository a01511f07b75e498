// Work is counted in three parts: a layer and micro-batch; the ends of the pipeline (embedding, output layer,
// loss, hand-over); and the step that ends the iteration (gradients, weights, optimizer). Each count is
// divided by the peak speed of the part of the machine that does it. Parts that different constants scale are
// kept separate: even and odd matrices, links and network, what TP cuts and what it does not.

#include "tools/plan/iteration_work.h"

#include <algorithm>
#include <cmath>

#include "tools/plan/constants.h"

namespace cairn {
namespace {

// Tensors of tokens * hidden that a layer's forward pass reads or writes in elementwise kernels that TP cuts:
// biases, GeLU and transposes. Norms, residuals and dropout are whole on each rank (TimeConstants::whole),
// unless sequences are cut too.
constexpr double kCutPasses = 16;
constexpr double kFlashBackward = 2.5;  // forward passes: the scores are computed again
constexpr double kCausal = 0.5;         // of the scores, which only flash attention exploits
constexpr double kLossBytes = 24;  // a logit: read and written as half and as float, in forward and backward
constexpr double kStepBytesSharded = 40;  // a parameter: Adam reads and writes master, moments, gradient
constexpr double kStepBytesWhole = 8;     // a parameter: cast and clear on every rank
constexpr double kHostBytes = 4;          // a parameter over PCIe: a gradient down, a weight up
constexpr double kHostAdam = 2e9;         // parameters a second in the optimizer step of one GPU's CPUs

struct Tile {
  double rows, columns;
  double speed;  // against the largest: a smaller tile reads its operands more often
};
constexpr Tile kTiles[] = {
    {256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.92}, {128, 64, 0.8}, {64, 128, 0.8}};

bool IsMultiple(double side, double of) { return std::fmod(side, of) == 0; }

class WorkCounter {
 public:
  WorkCounter(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster)
      : shape_(shape),
        setup_(setup),
        cluster_(cluster),
        tp_(static_cast<double>(setup.tp)),
        hidden_(static_cast<double>(shape.hidden)),
        tokens_(static_cast<double>(setup.micro_batch) * shape.seq),
        element_(setup.mixed() ? 2.0 : 4.0),
        forwards_(setup.recompute == Recomputation::kFull ? 2 : 1),
        peak_(cluster.PeakFlops(setup.precision)),
        memory_(cluster.hbm_gbps * kGiga),
        network_(cluster.nic_gbps * kGiga),
        link_(cluster.link_gbps * kGiga) {}

  IterationWork Count() const {
    IterationWork work{.setup = setup_};
    work.cores = cluster_.cores * std::ceil(static_cast<double>(setup_.gpus) / cluster_.gpus_per_node);
    work.layers = PlannedStages(shape_, setup_);
    CountLayer(work);
    CountEnds(work);
    CountStep(work);
    return work;
  }

 private:
  void CountLayer(IterationWork& work) const {
    const double queries = shape_.QueryWidth() / tp_;
    const double fused = queries + 2 * shape_.KeyValueWidth() / tp_;
    const double ffn = shape_.Ffn() / tp_;
    AddTrained(hidden_, fused, work.products);
    AddTrained(queries, hidden_, work.products);
    AddTrained(hidden_, shape_.IsGated() ? 2 * ffn : ffn, work.products);
    AddTrained(ffn, hidden_, work.products);
    work.attention = Attention();
    work.input = (forwards_ + 2) * element_ * tokens_ * hidden_ / memory_;
    work.whole_share = WholeShare();
    work.cut_share = kCutPasses / tp_;
    work.parameters = shape_.LayerMatrices() / tp_ / memory_;
    work.tensor_parallel = TensorParallel();
    work.rounds = AllReduces() * std::ceil(std::log2(tp_));
  }

  // Embedding, output layer and loss (never recomputed), and what passes from stage to stage: activations to
  // one neighbour and their gradients back.
  void CountEnds(IterationWork& work) const {
    const double vocab = static_cast<double>(shape_.PaddedVocab(setup_.tp)) / tp_;
    AddProduct(tokens_, vocab, hidden_, work.head);
    AddProduct(tokens_, hidden_, vocab, work.head);
    AddProduct(vocab, hidden_, tokens_, work.head);
    work.loss = tokens_ * vocab * kLossBytes / memory_;
    work.embedding = vocab * hidden_ / memory_;
    if (setup_.pp > 1)
      work.hand_over =
          OnSlowest(2 * element_ * tokens_ * hidden_ * WholeShare() * setup_.virtual_stages, setup_.gpus);
  }

  // All-reduce is two passes; ZeRO-1 then gathers weights; ZeRO-2 scatters every micro-batch's gradients;
  // ZeRO-3 gathers weights for each forward and backward too.
  void CountStep(IterationWork& work) const {
    const double params = StageParams();
    if (setup_.dp > 1) {
      const double micro_batches = static_cast<double>(setup_.MicroBatches());
      const double passes[] = {2, 3, micro_batches + 1, 3 * micro_batches};
      const double once = params * element_ * (setup_.dp - 1.0) / setup_.dp;
      work.data_parallel =
          OnSlowest(once * passes[std::clamp<int64_t>(setup_.zero, 0, 3)], setup_.tp * setup_.dp);
    }
    const double sharded = params / (setup_.zero > 0 ? setup_.dp : 1);
    if (setup_.offload_optimizer)
      work.offloaded = sharded * kHostBytes / (cluster_.pcie_gbps * kGiga) + sharded / kHostAdam;
    else
      work.optimizer = (params * kStepBytesWhole + sharded * kStepBytesSharded) / memory_;
  }

  // The work of the stage that holds most. The first and the last also hold the embedding.
  double StageParams() const {
    const double layer = shape_.LayerParams(), embedding = shape_.PaddedVocab(setup_.tp) * hidden_;
    if (setup_.first_layers == 0 && setup_.last_layers == 0)
      return (static_cast<double>(shape_.layers) / setup_.pp * layer + embedding) / tp_;
    const StageLayers layers = PlannedStages(shape_, setup_);
    return std::max(std::max(layers.first, layers.last) * layer + embedding, layers.middle * layer) / tp_;
  }

  // (m × k) by (k × n).
  void AddProduct(double m, double n, double k, ProductWork& work, double times = 1) const {
    double seconds = times * 2 * m * n * k / peak_;
    bool odd = false;
    if (!cluster_.cpu) {  // tiles of a CPU are a few registers, and there is one wave
      seconds /= TileAndWaveEfficiency(m, n, cluster_.sms);
      odd = !IsMultiple(m, 64) || !IsMultiple(n, 64) || !IsMultiple(k, 64);
    }
    (odd ? work.odd : work.whole) += seconds;
    (odd ? work.odd_over_depth : work.whole_over_depth) += seconds / k;
  }

  // A weight of [out, in]: forward, again if recomputed, gradient of the input and of the weight.
  void AddTrained(double in, double out, ProductWork& work) const {
    AddProduct(tokens_, out, in, work, forwards_);
    AddProduct(tokens_, in, out, work);
    AddProduct(out, in, tokens_, work);
  }

  AttentionWork Attention() const {
    const double seq = static_cast<double>(shape_.seq);
    const double head_dim = static_cast<double>(shape_.HeadDim());
    const double scores = setup_.micro_batch * seq * seq * shape_.heads / tp_;  // elements
    const double pass = 2 * 2 * scores * head_dim / peak_;
    AttentionWork work;
    if (setup_.flash_attention) {
      work.products = (forwards_ + kFlashBackward) * kCausal * pass;
      return work;
    }
    work.products = pass;
    work.scores = scores * element_ / memory_;
    work.passes = setup_.recompute == Recomputation::kNone ? 3 : 4;
    if (cluster_.cpu) return work;
    work.products /= head_dim / (64 * std::ceil(head_dim / 64));
    work.odd = !IsMultiple(head_dim, 8);
    work.of_128 = head_dim == 128;
    return work;
  }

  // For the layer's output: two a forward, two a backward. Sequence parallelism gathers and scatters instead:
  // the same bytes, in pieces that hide behind products.
  double AllReduces() const { return setup_.tp == 1 ? 0 : 2 * forwards_ + 2; }
  TransferWork TensorParallel() const {
    const double bytes = AllReduces() * element_ * tokens_ * hidden_ * 2 * (tp_ - 1) / tp_;
    return {bytes / link_, CrossesNodes(setup_.tp) ? bytes / network_ : 0};
  }

  bool CrossesNodes(int64_t gpus) const { return gpus > cluster_.gpus_per_node; }
  double WholeShare() const { return setup_.sequence_parallel ? 1 / tp_ : 1; }

  // Bytes of each GPU: over its share of the node's network, or over its link if a node holds all `gpus`.
  TransferWork OnSlowest(double bytes, int64_t gpus) const {
    if (CrossesNodes(gpus)) return {.network = bytes * cluster_.gpus_per_node / network_};
    return {.link = bytes / link_};
  }

  const ModelShape& shape_;
  const RunSetup& setup_;
  const Cluster& cluster_;
  double tp_;
  double hidden_;
  double tokens_;    // of one micro-batch
  double element_;   // bytes
  double forwards_;  // passes
  double peak_;      // operations a second
  double memory_;    // bytes a second
  double network_;   // bytes a second of a node
  double link_;      // bytes a second
};

}  // namespace

double TileAndWaveEfficiency(double m, double n, int sms) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(m / tile.rows) * std::ceil(n / tile.columns);
    const double waves = std::ceil(tiles / sms);
    best = std::max(best, tile.speed * m * n / (waves * sms * tile.rows * tile.columns));
  }
  return best;
}

IterationWork WorkOf(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster) {
  return WorkCounter(shape, setup, cluster).Count();
}

}  // namespace cairn
