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
// A mixture of experts moves each token once for every expert that it visits: sorted for its ranks, then for
// its experts, and back twice (Megatron-Core's MoEAlltoAllTokenDispatcher: permute, sort_chunks, unpermute).
constexpr double kRoutedPasses = 6;
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
        visited_(static_cast<double>(shape.experts_per_token)),
        peak_(cluster.PeakFlops(setup.precision)),
        memory_(cluster.hbm_gbps * kGiga),
        network_(cluster.nic_gbps * kGiga),
        link_(cluster.link_gbps * kGiga) {}

  IterationWork Count() const {
    IterationWork work{.setup = setup_};
    work.cores = cluster_.cores * std::ceil(static_cast<double>(setup_.gpus) / cluster_.gpus_per_node);
    work.layers = PlannedStages(shape_, setup_);
    shape_.modules.ForEachKind(0, shape_.layers, [&](const ModuleSet& layer, double count) {
      CountLayer(layer, count / static_cast<double>(shape_.layers), work);
    });
    work.attention = Attention();
    work.whole_share = WholeShare();
    CountEnds(work);
    CountStep(work);
    return work;
  }

 private:
  // Adds the `share` of a layer of this kind to that of the mean layer.
  void CountLayer(const ModuleSet& layer, double share, IterationWork& work) const {
    CountAttention(layer, share, work.products);
    CountMlp(layer, "mlp.up", "mlp.gate", shape_.Ffn(), share, work.products);
    CountMlp(layer, "mlp.shared.up", "mlp.shared.gate", shape_.shared_ffn, share, work.products);
    const bool mixture = layer.Has("mlp.router");
    if (mixture) AddExpertWork(layer, share, work);
    work.input += share * (forwards_ + 2) * element_ * tokens_ * hidden_ / memory_;
    work.cut_share += share * (kCutPasses + (mixture ? kRoutedPasses * visited_ : 0)) / tp_;
    work.parameters += share * ParamsOfRank(MatricesOf(layer), setup_).All() / memory_;
    // Experts have no all-reduce of TP: their tokens come and go by all-to-all.
    const bool halved = mixture && !layer.Has("mlp.shared.up");
    const double all_reduces = AllReduces() * (halved ? 0.5 : 1);
    Add(TensorParallel(all_reduces), share, work.tensor_parallel);
    work.rounds += share * all_reduces * std::ceil(std::log2(tp_));
  }

  void CountAttention(const ModuleSet& layer, double share, ProductWork& work) const {
    const double queries = shape_.QueryWidth() / tp_;
    const double values = static_cast<double>(shape_.heads * shape_.ValueHeadDim()) / tp_;
    if (!layer.Has("attention.key_value_down")) {
      AddTrained(hidden_, queries + 2 * shape_.KeyValueWidth() / tp_, work, {.share = share});
    } else {
      // Megatron-Core's down projections are whole on each rank; sequence parallelism divides their tokens.
      const bool ranked = layer.Has("attention.query_down");
      const double rank = static_cast<double>(shape_.query_rank),
                   latent = static_cast<double>(shape_.key_value_rank);
      const Rows down{.tokens = tokens_ * WholeShare(), .share = share};
      AddTrained(hidden_, latent + shape_.rotated_dim, work, down);
      if (ranked) AddTrained(hidden_, rank, work, down);
      AddTrained(ranked ? rank : hidden_, queries, work, {.share = share});
      AddTrained(latent, shape_.heads * shape_.UnrotatedDim() / tp_ + values, work, {.share = share});
    }
    AddTrained(values, hidden_, work, {.share = share});
  }

  void CountMlp(const ModuleSet& layer, const char* up, const char* gate, int64_t width, double share,
                ProductWork& work) const {
    if (!layer.Has(up)) return;
    const double ffn = width / tp_;
    AddTrained(hidden_, layer.Has(gate) ? 2 * ffn : ffn, work, {.share = share});
    AddTrained(ffn, hidden_, work, {.share = share});
  }

  // The router on a rank's own tokens, and one grouped product for all experts of a rank, with as many tokens
  // for each of them as if the router were in balance.
  void AddExpertWork(const ModuleSet& layer, double share, IterationWork& work) const {
    const double experts = static_cast<double>(shape_.experts),
                 ffn = static_cast<double>(shape_.expert_ffn) / setup_.etp;
    AddTrained(hidden_, experts, work.products, {.tokens = tokens_ * WholeShare(), .share = share});
    const Rows rows{.tokens = tokens_ * visited_ * setup_.ep * setup_.etp / (experts * tp_),
                    .groups = experts / setup_.ep,
                    .share = share};
    AddTrained(hidden_, layer.Has("mlp.experts.gate") ? 2 * ffn : ffn, work.products, rows);
    AddTrained(ffn, hidden_, work.products, rows);
    const double passes = 2 * (forwards_ + 1);  // there and back, as often as the experts run
    Add(AllToAll(passes), share, work.dispatch);
    work.rounds += share * passes * std::ceil(std::log2(setup_.ep * setup_.etp));
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
    const RankParams params = StageParams();
    work.data_parallel = DataParallel(params.dense, setup_.dp);
    work.expert_data_parallel = DataParallel(params.experts, setup_.ExpertReplicas());
    const bool sharded = setup_.zero > 0;
    const double stepped =
        params.dense / (sharded ? setup_.dp : 1) + params.experts / (sharded ? setup_.ExpertReplicas() : 1);
    if (setup_.offload_optimizer)
      work.offloaded = stepped * kHostBytes / (cluster_.pcie_gbps * kGiga) + stepped / kHostAdam;
    else
      work.optimizer = (params.All() * kStepBytesWhole + stepped * kStepBytesSharded) / memory_;
  }

  TransferWork DataParallel(double params, int64_t replicas) const {
    if (replicas == 1 || params == 0) return {};
    const double micro_batches = static_cast<double>(setup_.MicroBatches());
    const double passes[] = {2, 3, micro_batches + 1, 3 * micro_batches};
    const double once = params * element_ * (replicas - 1.0) / replicas;
    return OnSlowest(once * passes[std::clamp<int64_t>(setup_.zero, 0, 3)], setup_.tp * setup_.dp);
  }

  // The work of the stage that holds most. The first and the last also hold the embedding.
  RankParams StageParams() const {
    const StageLayers layers = PlannedStages(shape_, setup_);
    const double even = static_cast<double>(shape_.layers) / setup_.pp;
    const bool uneven = setup_.first_layers > 0 || setup_.last_layers > 0;
    const RankParams layer = ParamsOfRank(MeanCounts(), setup_);
    const auto of = [&](double count, double embedding) {
      return RankParams{count * layer.dense + embedding / tp_, count * layer.experts};
    };
    const RankParams end =
        of(uneven ? std::max(layers.first, layers.last) : even, shape_.PaddedVocab(setup_.tp) * hidden_);
    const RankParams middle = of(uneven ? layers.middle : 0, 0);
    return end.All() > middle.All() ? end : middle;
  }

  ParameterCounts MeanCounts() const {
    ParameterCounts mean;
    shape_.modules.ForEachKind(0, shape_.layers, [&](const ModuleSet& layer, double count) {
      const ParameterCounts counts = shape_.CountsOf(layer);
      for (const auto field : {&ParameterCounts::all, &ParameterCounts::whole, &ParameterCounts::experts})
        mean.*field += counts.*field * count / static_cast<double>(shape_.layers);
    });
    return mean;
  }

  ParameterCounts MatricesOf(const ModuleSet& layer) const {
    const ParameterCounts counts = shape_.CountsOf(layer);
    return {.all = counts.matrices, .whole = counts.whole, .experts = counts.expert_matrices};
  }

  // The rows of `groups` products of the same sides, which run as one. A `share` of their work counts.
  struct Rows {
    double tokens = 0;  // 0: those of the micro-batch
    double groups = 1;
    double share = 1;
  };

  // (m × k) by (k × n).
  void AddProduct(double m, double n, double k, ProductWork& work, double times = 1,
                  double groups = 1) const {
    double seconds = times * groups * 2 * m * n * k / peak_;
    bool odd = false;
    if (!cluster_.cpu) {  // tiles of a CPU are a few registers, and there is one wave
      seconds /= TileAndWaveEfficiency(m, n, cluster_.sms, groups);
      odd = !IsMultiple(m, 64) || !IsMultiple(n, 64) || !IsMultiple(k, 64);
    }
    (odd ? work.odd : work.whole) += seconds;
    (odd ? work.odd_over_depth : work.whole_over_depth) += seconds / k;
  }

  // A weight of [out, in]: forward, again if recomputed, gradient of the input and of the weight.
  void AddTrained(double in, double out, ProductWork& work, const Rows& rows) const {
    const double tokens = rows.tokens > 0 ? rows.tokens : tokens_;
    AddProduct(tokens, out, in, work, rows.share * forwards_, rows.groups);
    AddProduct(tokens, in, out, work, rows.share, rows.groups);
    AddProduct(out, in, tokens, work, rows.share, rows.groups);
  }

  AttentionWork Attention() const {
    const double seq = static_cast<double>(shape_.seq);
    const double head_dim = static_cast<double>(shape_.HeadDim());
    const double scores = setup_.micro_batch * seq * seq * shape_.heads / tp_;  // elements
    const double pass = 2 * scores * (head_dim + static_cast<double>(shape_.ValueHeadDim())) / peak_;
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
  TransferWork TensorParallel(double all_reduces) const {
    const double bytes = all_reduces * element_ * tokens_ * hidden_ * 2 * (tp_ - 1) / tp_;
    return {bytes / link_, CrossesNodes(setup_.tp) ? bytes / network_ : 0};
  }

  // What a rank sends in `passes`, if the router chooses all experts equally often: a copy of each of its
  // tokens to each expert that the token visits, which with ETP the ranks of the expert gather, so over links
  //   element · hidden · tokens / TP · top-k · ((EP - 1) / EP + ETP - 1) bytes a pass
  // (Megatron-Core's MoEAlltoAllTokenDispatcher: all-to-all over EP, all-gather over ETP, and back). Over the
  // network a token goes once to each other node that has one of its experts (DeepEP, Megatron-Core's
  // MoEFlexTokenDispatcher): of N nodes these are (N - 1) (1 - (1 - 1/N)^top-k). ETP ranks are neighbours.
  TransferWork AllToAll(double passes) const {
    const double ep = static_cast<double>(setup_.ep), etp = static_cast<double>(setup_.etp);
    const double bytes = passes * element_ * hidden_ * tokens_ / tp_;
    const double nodes = std::max(1.0, ep * etp / cluster_.gpus_per_node);
    const double others = (nodes - 1) * (1 - std::pow(1 - 1 / nodes, visited_));
    return {.link = bytes * visited_ * ((ep - 1) / ep + etp - 1) / link_,
            .network = bytes * others * cluster_.gpus_per_node / network_};
  }

  static void Add(const TransferWork& work, double share, TransferWork& sum) {
    sum.link += share * work.link;
    sum.network += share * work.network;
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
  double visited_;   // experts of a token
  double peak_;      // operations a second
  double memory_;    // bytes a second
  double network_;   // bytes a second of a node
  double link_;      // bytes a second
};

}  // namespace

double TileAndWaveEfficiency(double m, double n, int sms, double groups) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = groups * std::ceil(m / tile.rows) * std::ceil(n / tile.columns);
    const double waves = std::ceil(tiles / sms);
    best = std::max(best, tile.speed * groups * m * n / (waves * sms * tile.rows * tile.columns));
  }
  return best;
}

IterationWork WorkOf(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster) {
  return WorkCounter(shape, setup, cluster).Count();
}

}  // namespace cairn
