// LayoutOf() goes over the specs once: those of the stage, and a tied copy on the last one, are cut along
// their dimension and put one after another. Padding only extends dimension 0, so the real elements are
// a prefix of the local array. PiecesOf() takes those of a partition. So each element has one writer: in the
// stage that owns the tensor, the tensor parallel rank that has it (one of several in turn), and the data
// parallel rank of the partition.

#include "ckpt/model/placement.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace cairn {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// The slice of `spec` at one tensor parallel rank: its box, and its shape in memory.
Status CutByTensorParallelism(const ParameterSpec& spec, int tp, int tp_rank, LocalParameter& local) {
  local.box = Box::Whole(spec.shape);
  local.local_shape = spec.shape;
  if (spec.tp_dim == kReplicated) return OkStatus();
  const uint64_t size = spec.shape[spec.tp_dim];
  uint64_t padded = size;
  if (spec.pad_multiple > 0) {
    if (spec.tp_dim != 0) return NotSupported("tensor {}: only dimension 0 can be padded", spec.name);
    padded = RoundUp(size, spec.pad_multiple * tp);
  } else if (size % spec.tp_unit != 0 || size / spec.tp_unit % tp != 0) {
    return InvalidArgument(
        "tensor {}: {} units of {} in dimension {} are not a multiple of TP={}; choose another TP", spec.name,
        size / spec.tp_unit, spec.tp_unit, spec.tp_dim, tp);
  }
  const uint64_t share = padded / tp;
  const uint64_t begin = std::min(size, share * tp_rank);
  local.box.offset[spec.tp_dim] = begin;
  local.box.extent[spec.tp_dim] = std::min(size, share * (tp_rank + 1)) - begin;
  local.local_shape[spec.tp_dim] = share;
  return OkStatus();
}

}  // namespace

std::vector<int> LayersPerStage(int layers, int pp) {
  std::vector<int> stages(pp, layers / pp);
  for (int stage = 0; stage < layers % pp; ++stage) ++stages[stage];
  return stages;
}

int StageOf(int layer, const std::vector<int>& layers_per_stage) {
  if (layer == kBeforeLayers) return 0;
  int stage = 0;
  const int last = static_cast<int>(layers_per_stage.size()) - 1;
  for (int end = layers_per_stage[0]; stage < last && layer >= end; end += layers_per_stage[stage]) ++stage;
  return stage;
}

Result<std::vector<int>> LayersPerChunk(int layers, const Topology& topology) {
  const int chunks = topology.pp * topology.virtual_stages;
  if (topology.layers_per_stage.empty()) {
    if (chunks <= std::max(layers, 1)) return LayersPerStage(layers, chunks);
    if (topology.virtual_stages == 1)
      return InvalidArgument("PP={} is more than the model's {} layers; choose a smaller PP", chunks, layers);
    return InvalidArgument("PP={} with {} virtual stages is more than the model's {} layers; choose fewer",
                           topology.pp, topology.virtual_stages, layers);
  }
  int64_t sum = 0;
  for (int chunk : topology.layers_per_stage) sum += chunk;
  if (sum == layers) return topology.layers_per_stage;
  return InvalidArgument("layers per stage {}: they add up to {}, the model has {} layers",
                         fmt::join(topology.layers_per_stage, ","), sum, layers);
}

int CountLayers(const std::vector<ParameterSpec>& specs) {
  int layers = 0;
  for (const ParameterSpec& spec : specs)
    if (spec.layer != kAfterLayers) layers = std::max(layers, spec.layer + 1);
  return layers;
}

Result<RankLayout> LayoutOf(const std::vector<ParameterSpec>& specs, const Topology& topology, int tp_rank,
                            int pp_rank) {
  CAIRN_RETURN_IF_ERROR(Validate(topology));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int> chunks, LayersPerChunk(CountLayers(specs), topology));
  RankLayout layout;
  for (uint32_t i = 0; i < specs.size(); ++i) {
    const ParameterSpec& spec = specs[i];
    const bool owns = StageOf(spec.layer, chunks) % topology.pp == pp_rank;
    if (!owns && !(spec.tied_to_last && pp_rank == topology.pp - 1)) continue;
    LocalParameter local;
    local.index = i;
    local.flat_begin = layout.flat_size;
    CAIRN_RETURN_IF_ERROR(CutByTensorParallelism(spec, topology.tp, tp_rank, local));
    const bool writer_among_tp = spec.tp_dim != kReplicated || static_cast<int>(i % topology.tp) == tp_rank;
    local.writes = owns && writer_among_tp;
    layout.flat_size += local.local_shape.Volume();
    layout.parameters.push_back(std::move(local));
  }
  layout.partition_size = RoundUp((layout.flat_size + topology.dp - 1) / topology.dp, kPartitionAlign);
  return layout;
}

std::vector<PlacedPiece> PiecesOf(const RankLayout& layout, int dp_rank) {
  const FlatRange partition = layout.Partition(dp_rank);
  std::vector<PlacedPiece> pieces;
  for (const LocalParameter& local : layout.parameters) {
    // Padding rows come last, so the box is a prefix of the local array exactly if only dimension 0 is
    // padded.
    const uint64_t begin = std::max(partition.begin, local.flat_begin);
    const uint64_t end = std::min(partition.end, local.flat_begin + local.box.Volume());
    if (!local.writes || begin >= end) continue;
    pieces.push_back({local.index, local.box, {begin - local.flat_begin, end - local.flat_begin}, begin});
  }
  return pieces;
}

}  // namespace cairn
