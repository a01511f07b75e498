// The shards of a mixture, against a plain loop over ranks and elements that knows nothing of placement.h.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "convert/stream/step_plan.h"
#include "tests/support/make_step.h"

namespace cairn {
namespace {

// Where a rank is, after the comment of ckpt/model/topology.h.
struct Place {
  uint64_t tp, dp, pp, etp, ep, edp;
};
Place PlaceOfRank(const Topology& t, uint64_t rank) {
  const uint64_t tp = t.tp, dp = t.dp, ep = t.ep, etp = t.etp == 0 ? t.tp : t.etp;
  const uint64_t in_stage = rank % (tp * dp);
  return {in_stage % tp,  in_stage / tp,       rank / (tp * dp),
          in_stage % etp, in_stage / etp % ep, in_stage / (etp * ep)};
}

// Rows that a rank holds of one dimension, of which the first `real` exist.
struct Rows {
  uint64_t begin, count, real;
};

class PlainPlan {
 public:
  PlainPlan(const std::vector<ParameterSpec>& specs, const Topology& topology, std::vector<int> layers)
      : specs_(specs), topology_(topology), stage_ends_(std::move(layers)) {
    std::partial_sum(stage_ends_.begin(), stage_ends_.end(), stage_ends_.begin());
    for (const ParameterSpec& spec : specs) writers_.emplace_back(spec.shape.Volume());
    for (int rank = 0; rank < topology.world(); ++rank) AddRank(rank);
  }
  // For each parameter: the ranks that write each element.
  const std::vector<std::vector<std::vector<int>>>& writers() const { return writers_; }

 private:
  uint64_t StageOfSpec(const ParameterSpec& spec) const {
    if (spec.layer == kBeforeLayers) return 0;
    if (spec.layer == kAfterLayers) return stage_ends_.size() - 1;
    uint64_t stage = 0;
    while (spec.layer >= stage_ends_[stage]) ++stage;
    return stage;
  }

  Rows RowsOf(const ParameterSpec& spec, int dim, const Place& at) const {
    const uint64_t size = spec.shape[dim];
    for (const Cut& cut : spec.cuts) {
      if (cut.dim != dim) continue;
      const uint64_t ranks = cut.axis == Axis::kTp   ? topology_.tp
                             : cut.axis == Axis::kEp ? topology_.ep
                             : topology_.etp == 0    ? topology_.tp
                                                     : topology_.etp;
      const uint64_t mine = cut.axis == Axis::kTp ? at.tp : cut.axis == Axis::kEp ? at.ep : at.etp;
      uint64_t count = size / ranks;
      if (cut.pad > 0) count = (size + cut.pad * ranks - 1) / (cut.pad * ranks) * cut.pad;
      const uint64_t begin = mine * count;
      return {begin, count, size > begin ? std::min(count, size - begin) : 0};
    }
    return {0, size, size};
  }

  // One of the ranks that hold the same: the next one for the next parameter.
  bool IsItsTurn(uint32_t index, const Place& at) const {
    const ParameterSpec& spec = specs_[index];
    const auto cut = [&](Axis axis) { return std::ranges::count(spec.cuts, axis, &Cut::axis) > 0; };
    if (!spec.of_experts) return cut(Axis::kTp) || index % topology_.tp == at.tp;
    const uint64_t etp = topology_.etp == 0 ? topology_.tp : topology_.etp;
    if (!cut(Axis::kEtp) && index % etp != at.etp) return false;
    return cut(Axis::kEp) || index / (cut(Axis::kEtp) ? 1 : etp) % topology_.ep == at.ep;
  }

  // Goes over the rank's two buffers, element by element, padding included.
  void AddRank(int rank) {
    const Place at = PlaceOfRank(topology_, static_cast<uint64_t>(rank));
    std::array<uint64_t, 2> end{};  // of the dense buffer, of that of experts
    std::vector<std::pair<uint32_t, uint64_t>> held;
    for (uint32_t i = 0; i < specs_.size(); ++i) {
      const bool is_copy = specs_[i].tied_to_last && at.pp + 1 == stage_ends_.size();
      if (StageOfSpec(specs_[i]) != at.pp && !is_copy) continue;
      uint64_t elements = 1;
      for (int d = 0; d < specs_[i].shape.rank(); ++d) elements *= RowsOf(specs_[i], d, at).count;
      uint64_t& buffer = end[specs_[i].of_experts ? 1 : 0];
      if (StageOfSpec(specs_[i]) == at.pp && IsItsTurn(i, at)) held.emplace_back(i, buffer);
      buffer += elements;
    }
    const uint64_t etp = topology_.etp == 0 ? topology_.tp : topology_.etp;
    const std::array<uint64_t, 2> ranks = {
        static_cast<uint64_t>(topology_.dp),
        static_cast<uint64_t>(topology_.tp * topology_.dp) / (etp * topology_.ep)};
    const std::array<uint64_t, 2> mine = {at.dp, at.edp};
    for (const auto& [index, begin] : held) {
      const int kind = specs_[index].of_experts ? 1 : 0;
      const uint64_t share = ((end[kind] + ranks[kind] - 1) / ranks[kind] + 63) / 64 * 64;
      AddElements(rank, index, at,
                  [&, begin = begin](uint64_t i) { return (begin + i) / share == mine[kind]; });
    }
  }

  template <typename IsMine>
  void AddElements(int rank, uint32_t index, const Place& at, IsMine is_mine) {
    const ParameterSpec& spec = specs_[index];
    Dims local = spec.shape;
    for (int d = 0; d < local.rank(); ++d) local[d] = RowsOf(spec, d, at).count;
    for (uint64_t i = 0; i < local.Volume(); ++i) {
      uint64_t rest = i, flat = 0, stride = 1;
      bool exists = true;
      for (int d = local.rank() - 1; d >= 0; --d) {
        const Rows rows = RowsOf(spec, d, at);
        exists &= rest % local[d] < rows.real;
        flat += (rows.begin + rest % local[d]) * stride;
        rest /= local[d];
        stride *= spec.shape[d];
      }
      if (exists && is_mine(i)) writers_[index][flat].push_back(rank);
    }
  }

  const std::vector<ParameterSpec>& specs_;
  const Topology& topology_;
  std::vector<int> stage_ends_;
  std::vector<std::vector<std::vector<int>>> writers_;
};

// For each tensor of the plan: the ranks whose shards have each element.
std::vector<std::vector<std::vector<int>>> WritersOf(const StepPlan& plan) {
  std::vector<std::vector<std::vector<int>>> writers;
  for (const TensorEntry& tensor : plan.tensors()) writers.emplace_back(tensor.spec.shape.Volume());
  for (int stage = 0; stage < plan.topology().pp; ++stage)
    for (const PlannedShard& shard : plan.Stage(stage))
      for (const Piece& piece : shard.pieces)
        for (uint64_t i = piece.range.begin; i < piece.range.end; ++i) {
          const Dims& shape = plan.tensors()[piece.tensor].spec.shape;
          uint64_t rest = i, flat = 0, stride = 1;
          for (int d = shape.rank() - 1; d >= 0; --d) {
            flat += (piece.box.offset[d] + rest % piece.box.extent[d]) * stride;
            rest /= piece.box.extent[d];
            stride *= shape[d];
          }
          writers[piece.tensor][flat].push_back(shard.rank);
        }
  return writers;
}

TEST(ExpertPlanTest, EveryElementOfEveryRoleIsWrittenOnceByThePlainLoopsRank) {
  for (int round = 0; round < 60; ++round) {
    std::mt19937 random(round);
    const auto one_of = [&](std::initializer_list<int> values) {
      return values.begin()[random() % values.size()];
    };
    Topology topology{.tp = one_of({1, 2, 3}), .pp = one_of({1, 2, 3}), .ep = one_of({1, 2, 3, 6})};
    topology.etp = one_of({0, 1, 2, 3});
    const int replica = topology.ep * (topology.etp == 0 ? topology.tp : topology.etp);
    topology.dp = replica / std::gcd(replica, topology.tp) * one_of({1, 2, 3});
    const int layers = topology.pp + one_of({0, 1, 2});
    const StepRecipe recipe = RecipeOf({.layers = layers,
                                        .hidden = 6,
                                        .heads = 6,
                                        .ffn = 6,
                                        .vocab = 4 + random() % 40,
                                        .tied = random() % 2 == 0,
                                        .pad_multiple = 1 + random() % 4,
                                        .experts = 6 * (1 + random() % 2),
                                        .expert_ffn = 6 * (1 + random() % 2)},
                                       topology);
    std::vector<int> of_stage(topology.pp, layers / topology.pp);
    for (int stage = 0; stage < layers % topology.pp; ++stage) ++of_stage[stage];
    SCOPED_TRACE(fmt::format("round {}: {}, {}", round, ToString(topology), recipe.model.dump()));

    const auto plan = StepPlan::Make(TensorsOf(recipe), recipe.model, topology);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const PlainPlan plain(recipe.specs, topology, of_stage);
    std::map<std::string, size_t> index_of;
    for (size_t i = 0; i < recipe.specs.size(); ++i) index_of[recipe.specs[i].name] = i;
    const auto written = WritersOf(*plan);
    for (size_t t = 0; t < written.size(); ++t) {
      const TensorEntry& tensor = plan->tensors()[t];
      if (tensor.role == Role::kRng) continue;
      const auto& expected = plain.writers()[index_of.at(tensor.spec.name)];
      ASSERT_EQ(written[t], expected) << DisplayName(tensor);
      for (const std::vector<int>& ranks : expected) ASSERT_EQ(ranks.size(), 1u) << DisplayName(tensor);
    }
  }
}

StatusKind KindOfPlan(const TinyGpt& model, const Topology& topology, std::string& message) {
  const StepRecipe recipe = RecipeOf(model, topology);
  const Status status = StepPlan::Make(TensorsOf(recipe), recipe.model, topology).status();
  message = status.message();
  return status.kind();
}

TEST(ExpertPlanTest, SizesThatDoNotFitAreRefusedByName) {
  const TinyGpt mixture{.experts = 6, .expert_ffn = 10}, dense;
  for (const auto& [model, topology, says] :
       std::initializer_list<std::tuple<TinyGpt, Topology, const char*>>{
           {dense, {.dp = 2, .ep = 2}, "the model has no experts that EP or ETP could cut; leave both out"},
           {dense, {.tp = 2, .etp = 1}, "the model has no experts that EP or ETP could cut; leave both out"},
           {mixture, {.dp = 4, .ep = 4}, "EP=4 does not divide the model's 6 experts; choose another EP"},
           {mixture,
            {.tp = 4},
            "ETP=4 does not divide the model's 10 FFN units of an expert; choose another"},
           {mixture, {.dp = 3, .ep = 2}, "3 ranks of a stage are not a multiple of EP * ETP = 2"}}) {
    std::string message;
    EXPECT_EQ(KindOfPlan(model, topology, message), StatusKind::kInvalidArgument);
    EXPECT_NE(message.find(says), std::string::npos) << message;
  }
  // A manifest that does not state the sizes: the tensor is named.
  StepRecipe recipe = RecipeOf(mixture, {.dp = 4, .ep = 4});
  recipe.model.clear();
  EXPECT_EQ(
      StepPlan::Make(TensorsOf(recipe), recipe.model, recipe.topology).status().message(),
      "tensor layers.0.mlp.experts.gate.weight: 6 units of 1 in dimension 0 are not a multiple of EP=4; "
      "choose another EP");
}

}  // namespace
}  // namespace cairn
