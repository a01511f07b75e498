#include "ckpt/model/slice.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace cairn {
namespace {

std::string_view NameOf(Axis axis) {
  return axis == Axis::kTp ? "TP" : axis == Axis::kEtp ? "ETP" : axis == Axis::kEp ? "EP" : "?";
}

// Elements that each of `ranks` ranks has of a dimension of `size`, in memory.
Result<uint64_t> PerRank(const ParameterSpec& parameter, const Cut& cut, uint64_t ranks) {
  const uint64_t size = parameter.shape[cut.dim];
  if (cut.pad > 0) {
    const uint64_t multiple = cut.pad * ranks;
    return (size + multiple - 1) / multiple * cut.pad;
  }
  if (size % cut.unit == 0 && size / cut.unit % ranks == 0) return size / ranks;
  const std::string_view axis = NameOf(cut.axis);
  return InvalidArgument(
      "tensor {}: {} units of {} in dimension {} are not a multiple of {}={}; choose another {}",
      parameter.name, size / cut.unit, cut.unit, cut.dim, axis, ranks, axis);
}

}  // namespace

bool HasValidCuts(const ParameterSpec& parameter) {
  for (const Cut& cut : parameter.cuts) {
    if (std::ranges::find(parameter.axes(), cut.axis) == parameter.axes().end()) return false;
    if (cut.dim < 0 || cut.dim >= parameter.shape.rank()) return false;
    if (cut.unit == 0 || cut.pad > uint64_t{1} << 32) return false;
    if (std::ranges::count(parameter.cuts, cut.axis, &Cut::axis) > 1) return false;
    if (std::ranges::count(parameter.cuts, cut.dim, &Cut::dim) > 1) return false;
  }
  return !parameter.of_experts || parameter.shape.rank() > 0;
}

bool IsCutAlong(const ParameterSpec& parameter, Axis axis) {
  return std::ranges::find(parameter.cuts, axis, &Cut::axis) != parameter.cuts.end();
}

Result<Slice> SliceOf(const ParameterSpec& parameter, const Topology& topology, int rank) {
  Slice slice{Box::Whole(parameter.shape), parameter.shape};
  for (const Cut& cut : parameter.cuts) {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t share,
                           PerRank(parameter, cut, static_cast<uint64_t>(topology.size(cut.axis))));
    const uint64_t size = parameter.shape[cut.dim];
    const uint64_t begin = share * static_cast<uint64_t>(topology.Coordinate(rank, cut.axis));
    slice.box.offset[cut.dim] = std::min(size, begin);
    slice.box.extent[cut.dim] = std::min(size, begin + share) - std::min(size, begin);
    slice.shape[cut.dim] = share;
  }
  return slice;
}

ParameterSpec WholeOf(ParameterSpec parameter, const Dims& slice, const Topology& topology) {
  const Dims shape = std::exchange(parameter.shape, slice);
  for (Cut& cut : parameter.cuts) {
    uint64_t& size = parameter.shape[cut.dim];
    if (cut.pad > 0)
      cut.pad = std::exchange(size, shape[cut.dim]);
    else
      size *= static_cast<uint64_t>(topology.size(cut.axis));
  }
  return parameter;
}

}  // namespace cairn
