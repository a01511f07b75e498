// LayoutOf() goes over the specs once: the slices of those of the stage, and of a tied copy on the last one,
// are put one after another. Padding only extends dimension 0, so the real elements are a prefix of the local
// array. PiecesOf() takes those of a partition. So each element has one writer: in the stage that owns the
// tensor, the rank whose slice has it (one of several in turn), and the data parallel rank of the partition.

#include "ckpt/model/placement.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace cairn {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// True for one of the ranks that hold a parameter because it is not cut along their axes: the next one for
// the next parameter.
bool IsItsTurn(uint32_t index, const ParameterSpec& spec, const Topology& topology, int rank) {
  auto turn = static_cast<int>(index);
  for (const Axis axis : spec.axes()) {
    if (IsCutAlong(spec, axis)) continue;
    const int size = topology.size(axis);
    if (turn % size != topology.Coordinate(rank, axis)) return false;
    turn /= size;
  }
  return true;
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

Result<RankLayout> LayoutOf(const std::vector<ParameterSpec>& specs, const Topology& topology, int rank) {
  CAIRN_RETURN_IF_ERROR(Validate(topology));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int> chunks, LayersPerChunk(CountLayers(specs), topology));
  const int stage = topology.Coordinate(rank, Axis::kPp);
  RankLayout layout;
  for (uint32_t i = 0; i < specs.size(); ++i) {
    const ParameterSpec& spec = specs[i];
    const bool owns = StageOf(spec.layer, chunks) % topology.pp == stage;
    if (!owns && !(spec.tied_to_last && stage == topology.pp - 1)) continue;
    if (const Cut* cut = spec.padded(); cut && cut->dim != 0)
      return NotSupported("tensor {}: only dimension 0 can be padded", spec.name);
    CAIRN_ASSIGN_OR_RETURN(const Slice slice, SliceOf(spec, topology, rank));
    FlatBuffer& buffer = spec.of_experts ? layout.experts : layout.dense;
    layout.parameters.push_back(
        {slice, i, DataAxisOf(spec), buffer.size, owns && IsItsTurn(i, spec, topology, rank)});
    buffer.size += slice.shape.Volume();
  }
  const auto partition = [&](FlatBuffer& buffer, Axis data) {
    const auto ranks = static_cast<uint64_t>(topology.size(data));
    buffer.partition_size = RoundUp((buffer.size + ranks - 1) / ranks, kPartitionAlign);
  };
  partition(layout.dense, Axis::kDp);
  partition(layout.experts, Axis::kEdp);
  return layout;
}

std::vector<PlacedPiece> PiecesOf(const RankLayout& layout, const Topology& topology, int rank) {
  std::vector<PlacedPiece> pieces;
  for (const LocalParameter& local : layout.parameters) {
    const FlatRange partition = layout.buffer(local.data).Partition(topology.Coordinate(rank, local.data));
    // Padding rows come last, so the box is a prefix of the local array.
    const uint64_t begin = std::max(partition.begin, local.flat_begin);
    const uint64_t end = std::min(partition.end, local.flat_begin + local.box.Volume());
    if (!local.writes || begin >= end) continue;
    pieces.push_back({local.index, local.box, {begin - local.flat_begin, end - local.flat_begin}, begin});
  }
  return pieces;
}

}  // namespace cairn
