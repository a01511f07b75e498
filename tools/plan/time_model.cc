#include "tools/plan/time_model.h"

#include <algorithm>
#include <cmath>

#include "tools/plan/matmul.h"

namespace cairn {
namespace {

// Tensors of tokens * hidden that a layer's forward pass reads or writes in elementwise kernels that TP cuts:
// biases, GeLU and transposes. Norms, residuals and dropout are whole on each rank (TimeConstants::whole),
// unless sequences are cut too.
constexpr double kCutPasses = 16;
constexpr double kFlashBackward = 2.5;  // forward passes: the scores are computed again
constexpr double kCausal = 0.5;         // of the scores, which flash attention alone makes use of
constexpr double kLossBytes = 24;  // a logit: read and written as half and as float, in forward and backward
constexpr double kStepBytesSharded = 40;  // a parameter: Adam reads and writes master, moments, gradient
constexpr double kStepBytesWhole = 8;     // a parameter: cast and clear on every rank
constexpr double kHostBytes = 4;          // a parameter over PCIe: a gradient down, a weight up
constexpr double kHostAdam = 2e9;         // parameters a second that the CPUs beside one GPU step

bool Multiple(double side, double of) { return std::fmod(side, of) == 0; }

class Model {
 public:
  Model(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster,
        const TimeConstants& constants)
      : shape_(shape),
        setup_(setup),
        cluster_(cluster),
        constants_(constants),
        tp_(static_cast<double>(setup.tp)),
        hidden_(static_cast<double>(shape.hidden)),
        tokens_(static_cast<double>(setup.micro_batch) * shape.seq),
        whole_share_(setup.sequence_parallel ? 1 / tp_ : 1),
        element_(setup.mixed() ? 2.0 : 4.0),
        peak_(cluster.PeakFlops(setup.precision)),
        memory_(cluster.hbm_gbps * kGiga * constants.memory),
        network_(cluster.nic_gbps * kGiga * constants.network),
        link_(cluster.link_gbps * kGiga * constants.link) {}

  LayerTime Layer() const {
    LayerTime time;
    const double queries = shape_.QueryWidth() / tp_;
    const double fused = queries + 2 * shape_.KeyValueWidth() / tp_;
    const double ffn = shape_.Ffn() / tp_;
    time.products = Trained(hidden_, fused) + Trained(queries, hidden_) +
                    Trained(hidden_, shape_.gated ? 2 * ffn : ffn) + Trained(ffn, hidden_);
    time.attention = Attention();
    if (setup_.precision == Precision::kFp8) time.products /= constants_.fp8;
    const double bytes = element_ * tokens_ * hidden_ * (constants_.whole * whole_share_ + kCutPasses / tp_);
    time.elementwise = (Forwards() + 2) * bytes / memory_;
    time.tensor_parallel = TensorParallel();
    time.weights = shape_.LayerMatrices() / tp_ * constants_.weight_bytes / memory_;
    time.launch = constants_.launch;
    time.latency = AllReduces() * constants_.latency * std::ceil(std::log2(tp_));
    return time;
  }

  // Output layer and loss of one micro-batch; never recomputed.
  double Head() const {
    const double vocab = static_cast<double>(shape_.PaddedVocab(setup_.tp)) / tp_;
    const double products = Product(tokens_, vocab, hidden_) + Product(tokens_, hidden_, vocab) +
                            Product(vocab, hidden_, tokens_);
    return constants_.head * (products + tokens_ * vocab * kLossBytes / memory_);
  }

  double EmbeddingTraffic() const {
    return shape_.PaddedVocab(setup_.tp) / tp_ * hidden_ * constants_.weight_bytes / memory_;
  }

  // Activations to one neighbour and their gradients back, as far as computing does not hide them.
  double HandOver() const {
    if (setup_.pp == 1) return 0;
    const double speed = CrossesNodes(setup_.gpus) ? network_ / cluster_.gpus_per_node : link_;
    return 2 * element_ * tokens_ * hidden_ * whole_share_ / speed * constants_.hand_over *
           setup_.virtual_stages;
  }

  // The first or last stage holds the embedding beside its layers.
  double StageParams() const {
    const double layers = static_cast<double>(shape_.layers) / setup_.pp;
    return (layers * shape_.LayerParams() + shape_.PaddedVocab(setup_.tp) * hidden_) / tp_;
  }

  double DataParallel() const {
    if (setup_.dp == 1) return 0;
    const double ring = (setup_.dp - 1.0) / setup_.dp;
    const double once = StageParams() * element_ * ring;
    const double micro_batches = static_cast<double>(setup_.MicroBatches());
    // All-reduce is two passes; ZeRO-1 then gathers weights; ZeRO-2 scatters every micro-batch's gradients;
    // ZeRO-3 gathers weights for each forward and backward too.
    const double passes[] = {2, 3, micro_batches + 1, 3 * micro_batches};
    const double speed = CrossesNodes(setup_.tp * setup_.dp) ? network_ / cluster_.gpus_per_node : link_;
    return constants_.overlap * once * passes[std::clamp<int64_t>(setup_.zero, 0, 3)] / speed;
  }

  double Optimizer() const {
    const double sharded = StageParams() / (setup_.zero > 0 ? setup_.dp : 1);
    if (setup_.offload_optimizer)
      return sharded * kHostBytes / (cluster_.pcie_gbps * kGiga) + sharded / kHostAdam;
    return (StageParams() * kStepBytesWhole + sharded * kStepBytesSharded) / memory_;
  }

 private:
  bool CrossesNodes(int64_t gpus) const { return gpus > cluster_.gpus_per_node; }
  double Forwards() const { return setup_.recompute == Recompute::kFull ? 2 : 1; }

  // Seconds of (m × k) by (k × n).
  double Product(double m, double n, double k) const {
    double share = constants_.matmul * k / (k + constants_.depth);
    if (!cluster_.cpu) {  // tiles of a CPU are a few registers, and there is one wave
      share *= TileAndWaveEfficiency(m, n, cluster_.sms);
      if (!Multiple(m, 64) || !Multiple(n, 64) || !Multiple(k, 64)) share *= constants_.misaligned;
    }
    return 2 * m * n * k / (peak_ * share);
  }

  // Seconds of a weight of [out, in]: forward, again where recomputed, gradient of the input and of the
  // weight.
  double Trained(double in, double out) const {
    return Forwards() * Product(tokens_, out, in) + Product(tokens_, in, out) + Product(out, in, tokens_);
  }

  double Attention() const {
    const double seq = static_cast<double>(shape_.seq);
    const double head_dim = static_cast<double>(shape_.HeadDim());
    const double scores = setup_.micro_batch * seq * seq * shape_.heads / tp_;  // elements
    if (setup_.flash_attention)
      return (Forwards() + kFlashBackward) * 2 * 2 * kCausal * scores * head_dim / (peak_ * constants_.flash);
    double share = constants_.attention;
    if (!cluster_.cpu) {
      share *= head_dim / (64 * std::ceil(head_dim / 64));
      if (!Multiple(head_dim, 8)) share *= constants_.attention_misaligned;
      if (head_dim == 128) share *= constants_.attention_128;
    }
    const double forward =
        2 * 2 * scores * head_dim / (peak_ * share) + constants_.softmax * scores * element_ / memory_;
    return forward * (setup_.recompute == Recompute::kNone ? 3 : 4);
  }

  // Of the layer's output: two a forward, two a backward. Sequence parallelism gathers and scatters instead:
  // the same bytes, in pieces that hide behind products.
  double AllReduces() const { return setup_.tp == 1 ? 0 : 2 * Forwards() + 2; }
  double TensorParallel() const {
    const double bytes = element_ * tokens_ * hidden_ * 2 * (tp_ - 1) / tp_;
    const double speed = CrossesNodes(setup_.tp) ? std::min(network_, link_) : link_;
    return AllReduces() * bytes / speed * (setup_.sequence_parallel ? constants_.sequence : 1);
  }

  const ModelShape& shape_;
  const RunSetup& setup_;
  const Cluster& cluster_;
  const TimeConstants& constants_;
  double tp_;
  double hidden_;
  double tokens_;       // of one micro-batch
  double whole_share_;  // of what TP does not cut, on one rank
  double element_;      // bytes
  double peak_;         // operations a second
  double memory_;       // bytes a second
  double network_;      // bytes a second of a node
  double link_;         // bytes a second
};

// Cores that the ranks share; 0: each has a device of its own.
double SharedCores(const RunSetup& setup, const Cluster& cluster) {
  return cluster.cores * std::ceil(static_cast<double>(setup.gpus) / cluster.gpus_per_node);
}

// Seconds that more ranks than cores add: `stage_work` is what a rank of each stage computes in one
// micro-batch, summed over the stages. In its beats a pipeline runs 1, 2, ... pp stages at once and back to
// one, and cores are idle only where these are fewer. While one rank waits for a message another computes.
void AddTurns(const RunSetup& setup, const Cluster& cluster, double stage_work, IterationTime& time) {
  const double cores = SharedCores(setup, cluster);
  if (cores == 0 || setup.gpus <= cores) return;
  const double replicas = static_cast<double>(setup.tp) * setup.dp;  // ranks of a stage
  double idle_beats = 0;
  for (int64_t stages = 1; stages < setup.pp && stages * replicas < cores; ++stages)
    idle_beats += 2 * (1 - stages * replicas / cores);
  const double work = setup.MicroBatches() * stage_work * replicas / cores;
  time.turns = std::max(0.0, work + idle_beats * time.slowest_stage - time.steady - time.bubble) +
               (time.data_parallel + time.optimizer) * (setup.gpus / cores - 1);
}

LayerTime Paced(LayerTime time, double pace) {
  for (double* part : {&time.products, &time.attention, &time.elementwise, &time.tensor_parallel,
                       &time.weights, &time.launch, &time.latency})
    *part *= pace;
  return time;
}

}  // namespace

IterationTime TimeOf(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster,
                     const TimeConstants& constants) {
  const Model model(shape, setup, cluster, constants);
  const double pace = constants.pace;
  IterationTime time;
  time.layer = Paced(model.Layer(), pace);
  time.hand_over = pace * model.HandOver();
  const double cores = SharedCores(setup, cluster);
  const double turns = cores > 0 ? std::max(1.0, setup.tp / cores) : 1;  // of ranks that wait for each other
  const double deepest = std::ceil(static_cast<double>(shape.layers) / setup.pp);
  const double layers = deepest * (time.layer.Work() * turns + time.layer.latency);
  const double head = pace * model.Head() * turns;
  const double embedding = pace * model.EmbeddingTraffic() * turns;
  double all_stages;  // one micro-batch through the whole pipeline
  if (setup.pp == 1) {
    time.slowest_stage = all_stages = layers + head + embedding;
  } else {
    const double middle = layers + time.hand_over;
    const double first = layers + time.hand_over / 2 + embedding;
    const double last = first + head;
    time.slowest_stage = std::max(middle, last);
    all_stages = first + last + (setup.pp - 2) * middle;
  }
  time.steady = setup.MicroBatches() * time.slowest_stage;
  time.bubble = (all_stages - time.slowest_stage) / setup.virtual_stages;
  time.data_parallel = pace * model.DataParallel();
  time.optimizer = pace * model.Optimizer();
  const double waits = setup.pp * deepest * time.layer.latency + (setup.pp - 1) * time.hand_over;
  AddTurns(setup, cluster, (all_stages - waits) / turns, time);
  return time;
}

}  // namespace cairn
