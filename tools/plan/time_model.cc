// Pricing turns counted work into seconds by the constants. TimeOf combines these: a layer, then the
// stages; the slowest stage is the beat, and the others of one pass are the bubble; then gradients and
// optimizer. If ranks share cores, AddTurns extends the time to that of all their work on these cores.

#include "tools/plan/time_model.h"

#include <algorithm>
#include <cmath>

namespace cairn {
namespace {

// The seconds of counted work by the constants.
class Pricing {
 public:
  Pricing(const IterationWork& work, const TimeConstants& constants) : work_(work), constants_(constants) {}

  LayerTime Layer() const {
    LayerTime time;
    time.products = Products(work_.products);
    if (work_.setup.precision == Precision::kFp8) time.products /= constants_.fp8;
    time.attention = Attention();
    time.elementwise =
        work_.input * (constants_.whole * work_.whole_share + work_.cut_share) / constants_.memory;
    time.tensor_parallel =
        Transfer(work_.tensor_parallel) * (work_.setup.sequence_parallel ? constants_.sequence : 1);
    time.dispatch = Transfer(work_.dispatch);
    time.weights = work_.parameters * constants_.weight_bytes / constants_.memory;
    time.launch = constants_.launch;
    time.latency = work_.rounds * constants_.latency;
    return time;
  }
  // Output layer and loss of one micro-batch.
  double Head() const { return constants_.head * (Products(work_.head) + work_.loss / constants_.memory); }
  double Embedding() const { return work_.embedding * constants_.weight_bytes / constants_.memory; }
  double HandOver() const { return constants_.hand_over * Transfer(work_.hand_over); }
  double DataParallel() const {
    return constants_.overlap * (Transfer(work_.data_parallel) + Transfer(work_.expert_data_parallel));
  }
  double Optimizer() const { return work_.offloaded + work_.optimizer / constants_.memory; }

 private:
  double Products(const ProductWork& p) const {
    return (p.whole + constants_.depth * p.whole_over_depth +
            (p.odd + constants_.depth * p.odd_over_depth) / constants_.misaligned) /
           constants_.matmul;
  }
  double Attention() const {
    const AttentionWork& a = work_.attention;
    if (work_.setup.flash_attention) return a.products / constants_.flash;
    double share = constants_.attention;
    if (a.odd) share *= constants_.attention_misaligned;
    if (a.of_128) share *= constants_.attention_128;
    return a.passes * (a.products / share + constants_.softmax * a.scores / constants_.memory);
  }
  double Transfer(const TransferWork& t) const {
    return std::max(t.link / constants_.link, t.network / constants_.network);
  }

  const IterationWork& work_;
  const TimeConstants& constants_;
};

// Seconds that more ranks than cores add: `stage_work` is what a rank of each stage computes in one
// micro-batch, summed over the stages. In its beats a pipeline runs 1, 2, ... pp stages at once and back to
// one, and cores are idle only if these are fewer. While one rank waits for a message another computes.
void AddTurns(const RunSetup& setup, double cores, double stage_work, IterationTime& time) {
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
                       &time.dispatch, &time.weights, &time.launch, &time.latency})
    *part *= pace;
  return time;
}

}  // namespace

IterationTime TimeOf(const IterationWork& counted, const TimeConstants& constants) {
  const Pricing pricing(counted, constants);
  const RunSetup& setup = counted.setup;
  const double pace = constants.pace;
  IterationTime time;
  time.layer = Paced(pricing.Layer(), pace);
  time.hand_over = pace * pricing.HandOver();
  const double cores = counted.cores;
  const double turns = cores > 0 ? std::max(1.0, setup.tp / cores) : 1;  // of ranks that wait for each other
  const StageLayers& layers = counted.layers;
  const double layer = time.layer.Work() * turns + time.layer.latency;
  const double head = pace * pricing.Head() * turns;
  const double embedding = pace * pricing.Embedding() * turns;
  double all_stages;  // one micro-batch through the whole pipeline
  if (setup.pp == 1) {
    time.slowest_stage = all_stages = layers.first * layer + head + embedding;
  } else {
    const double middle = layers.middle * layer + time.hand_over;
    const double first = layers.first * layer + time.hand_over / 2 + embedding;
    const double last = layers.last * layer + time.hand_over / 2 + embedding + head;
    time.slowest_stage = std::max({first, middle, last});
    all_stages = first + last + (setup.pp - 2) * middle;
  }
  time.steady = setup.MicroBatches() * time.slowest_stage;
  time.bubble = (all_stages - time.slowest_stage) / setup.virtual_stages;
  time.data_parallel = pace * pricing.DataParallel();
  time.optimizer = pace * pricing.Optimizer();
  const double all_layers =
      setup.pp == 1 ? layers.first : layers.first + layers.last + (setup.pp - 2) * layers.middle;
  const double waits = all_layers * time.layer.latency + (setup.pp - 1) * time.hand_over;
  AddTurns(setup, cores, (all_stages - waits) / turns, time);
  return time;
}

IterationTime TimeOf(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster,
                     const TimeConstants& constants) {
  return TimeOf(WorkOf(shape, setup, cluster), constants);
}

}  // namespace cairn
