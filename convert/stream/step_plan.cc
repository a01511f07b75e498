// Make() puts the tensors of a parameter's roles together and tries every position once, so that a topology
// that does not fit fails before the first byte is written. Stage() then plans one stage at a time. It asks
// placement.h once for all ranks that hold the same slices, and gives each placed box to all roles of the
// parameter. Opaque tensors are distributed over the shards by their number, each as a whole.

#include "convert/stream/step_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "ckpt/model/layout.h"
#include "ckpt/model/model.h"
#include "ckpt/model/path_check.h"

namespace cairn {
namespace {

// The checks of placement.h, with messages in the words of the model's configuration.
Status CheckModel(const Model& model, const Topology& topology) {
  for (const auto& [axis, name, field, what] :
       {std::tuple(Axis::kTp, "TP", &Model::num_attention_heads, "attention heads"),
        std::tuple(Axis::kTp, "TP", &Model::num_key_value_heads, "key and value heads"),
        std::tuple(Axis::kTp, "TP", &Model::ffn_hidden_size, "FFN units"),
        std::tuple(Axis::kEp, "EP", &Model::num_experts, "experts"),
        std::tuple(Axis::kEtp, "ETP", &Model::moe_ffn_hidden_size, "FFN units of an expert")}) {
    const int64_t size = IntOf(model.*field);
    if (size > 0 && size % topology.size(axis) != 0)
      return InvalidArgument("{0}={1} does not divide the model's {2} {3}; choose another {0}", name,
                             topology.size(axis), size, what);
  }
  const int64_t layers = IntOf(model.num_layers);
  if (layers > 0 && layers < INT32_MAX) return LayersPerChunk(static_cast<int>(layers), topology).status();
  return OkStatus();
}

}  // namespace

Result<std::vector<int>> LayersBesideEnds(int layers, const Topology& topology, bool embedding, bool loss) {
  const int chunks = topology.pp * topology.virtual_stages;
  const int all = layers + (embedding ? 1 : 0) + (loss ? 1 : 0);
  if (layers < 1 || all % chunks != 0)
    return InvalidArgument(
        "{} layers, plus {} counted as layers, cannot be divided by {} stages; use --layers-per-stage",
        layers, all - layers, chunks);
  std::vector<int> per_chunk(chunks, all / chunks);
  per_chunk.front() -= embedding ? 1 : 0;
  per_chunk.back() -= loss ? 1 : 0;
  if (per_chunk.front() < 0 || per_chunk.back() < 0)
    return InvalidArgument("{} layers are too few for {} stages", layers, chunks);
  return per_chunk;
}

Status CheckExpertsDivide(const std::vector<TensorEntry>& tensors, const Topology& topology) {
  const auto is_cut = [](const TensorEntry& tensor) {
    return tensor.spec.of_experts && !tensor.spec.cuts.empty();
  };
  if ((topology.ep == 1 && topology.etp == 0) || std::ranges::any_of(tensors, is_cut)) return OkStatus();
  return InvalidArgument("topology {}: the model has no experts that EP or ETP could cut; leave both out",
                         ToString(topology));
}

Result<StepPlan> StepPlan::Make(const std::vector<TensorEntry>& tensors, const Model& model,
                                const Topology& topology) {
  CAIRN_RETURN_IF_ERROR(Validate(topology));
  CAIRN_RETURN_IF_ERROR(CheckExpertsDivide(tensors, topology));
  CAIRN_RETURN_IF_ERROR(CheckModel(model, topology));
  CAIRN_RETURN_IF_ERROR(CheckPaths(tensors));
  StepPlan plan;
  plan.tensors_ = tensors;
  plan.topology_ = topology;
  std::unordered_map<std::string, uint32_t> index_of;
  for (uint32_t i = 0; i < tensors.size(); ++i) {
    const ParameterSpec& spec = tensors[i].spec;
    if (IsOpaque(tensors[i].role)) {
      plan.opaque_.push_back(i);
      continue;
    }
    // A state of another shape than its parameter's (a number, a row) is a piece of its own that no rank
    // cuts.
    const auto known = index_of.find(spec.name);
    const bool own = IsOptimizerState(tensors[i].role) && known != index_of.end() &&
                     !(plan.specs_[known->second].shape == spec.shape) && spec.cuts.empty();
    if (own) {
      plan.specs_.push_back(spec);
      plan.roles_.push_back({i});
      continue;
    }
    const auto [found, is_new] = index_of.emplace(spec.name, plan.specs_.size());
    if (is_new) {
      plan.specs_.push_back(spec);
      plan.roles_.emplace_back();
    } else if (!(plan.specs_[found->second] == spec)) {
      return Corrupt("tensor {} has another shape or placement than {}", DisplayName(tensors[i]), spec.name);
    }
    plan.roles_[found->second].push_back(i);
  }
  // Tries each position now: nothing may fail once the first byte is written.
  for (int pp = 0; pp < topology.pp; ++pp)
    CAIRN_RETURN_IF_ERROR(LayoutOf(plan.specs_, topology, pp * topology.stage_size()).status());
  return plan;
}

std::vector<PlannedShard> StepPlan::Stage(int pp_rank) const {
  std::vector<PlannedShard> shards(topology_.stage_size());
  const int first = pp_rank * topology_.stage_size();
  std::map<std::vector<int>, Result<RankLayout>> layouts;  // by the coordinates that slices depend on
  for (int rank = first; rank < first + topology_.stage_size(); ++rank) {
    std::vector<int> place;
    for (const Axis axis : kDenseAxes) place.push_back(topology_.Coordinate(rank, axis));
    for (const Axis axis : kExpertAxes) place.push_back(topology_.Coordinate(rank, axis));
    auto layout = layouts.find(place);
    if (layout == layouts.end()) layout = layouts.emplace(place, LayoutOf(specs_, topology_, rank)).first;
    assert(layout->second.ok());  // Make() tried
    PlannedShard& shard = shards[rank - first];
    shard.rank = rank;
    for (const PlacedPiece& placed : PiecesOf(*layout->second, topology_, rank))
      for (uint32_t tensor : roles_[placed.index])
        shard.pieces.push_back({.tensor = tensor, .box = placed.box, .range = placed.range});
  }
  for (size_t i = 0; i < opaque_.size(); ++i) {
    const int at = static_cast<int>(i % topology_.world()) - first;
    if (at < 0 || at >= static_cast<int>(shards.size())) continue;
    const Dims& shape = tensors_[opaque_[i]].spec.shape;
    shards[at].pieces.push_back(
        {.tensor = opaque_[i], .box = Box::Whole(shape), .range = {0, shape.Volume()}});
  }
  return shards;
}

Catalog StepPlan::Layout() const {
  Catalog catalog;
  catalog.tensors = tensors_;
  catalog.pieces.reserve(tensors_.size());  // at least
  for (int stage = 0; stage < topology_.pp; ++stage)
    for (const PlannedShard& shard : Stage(stage)) {
      const auto file = static_cast<uint32_t>(catalog.files.size());
      catalog.files.push_back(ShardName(shard.rank));
      for (Piece piece : shard.pieces) {
        piece.file = file;
        catalog.pieces.push_back(std::move(piece));
      }
    }
  catalog.SortPieces();
  return catalog;
}

}  // namespace cairn
