// A group is named by the coordinates that tell its ranks from others': those along the axes that cut the
// parameter, the data parallel one and the place of the partition if each rank keeps its own, and the stage.
// Both stages that have a tied embedding keep its weights, but only the first one its states.
#include "runtime/saving/copy_sums.h"

#include <nlohmann/json.hpp>

#include "ckpt/base/flat_range.h"
#include "ckpt/base/value_sum.h"

namespace cairn {
namespace {

struct Holders {
  std::string group;
  int count = 1;

  void Along(Axis axis, bool differ, const Topology& topology, int rank) {
    if (differ)
      group += fmt::format("{}={} ", static_cast<int>(axis), topology.Coordinate(rank, axis));
    else
      count *= topology.size(axis);
  }
};

}  // namespace

CopySums::CopySums(const StateBuffers& buffers, const Topology& topology, int rank) {
  for (size_t part = 0; part < buffers.parts.size(); ++part)
    for (const LocalParameter& parameter : buffers.layout.parameters)
      if (!buffers.parts[part].on_gpu) Add(buffers, part, parameter, topology, rank);
}

void CopySums::Add(const StateBuffers& buffers, size_t number, const LocalParameter& parameter,
                   const Topology& topology, int rank) {
  const StateBuffers::Part& part = buffers.parts[number];
  const ParameterSpec& spec = buffers.specs[parameter.index];
  // Padding rows come last, so the box is a prefix of the local array.
  const FlatRange held =
      Overlap({parameter.flat_begin, parameter.flat_begin + parameter.box.Volume()}, part.covers);
  const uint64_t elements = held.end - held.begin;
  if (elements == 0) return;
  const bool partitioned = part.covers.end - part.covers.begin < buffers.layout.buffer(parameter.data).size;
  Holders holders;
  for (const Axis axis : spec.axes()) holders.Along(axis, IsCutAlong(spec, axis), topology, rank);
  holders.Along(parameter.data, partitioned, topology, rank);
  if (partitioned) holders.group += fmt::format("{}+{} ", held.begin - parameter.flat_begin, elements);
  const bool tied = spec.tied_to_last && part.role == Role::kWeight && !partitioned && topology.pp > 1;
  if (!tied) holders.Along(Axis::kPp, true, topology, rank);
  if (tied) holders.count *= 2;
  if (holders.count < 2) return;
  std::string name = fmt::format("{} ({})", spec.name, Name(part.role));
  for (const uint64_t at : parameter.box.offset) name += fmt::format(",{}", at);
  const uint64_t size = SizeOf(part.dtype);
  const Dims& extent = parameter.box.extent;
  const uint64_t columns = partitioned || extent.rank() == 0 ? elements : extent[extent.rank() - 1];
  values_.push_back({holders.group, std::move(name), number, (held.begin - part.covers.begin) * size,
                     elements / columns, columns, size});
}

std::string CopySums::Take(const std::vector<const std::byte*>& bases) const {
  nlohmann::json groups = nlohmann::json::object();
  for (const Values& values : values_)
    groups[values.group][values.name] = fmt::format(
        "{:016x}",
        ValueSum(bases[values.part] + values.offset, values.rows, values.columns, values.element_bytes));
  return groups.dump();
}

}  // namespace cairn
