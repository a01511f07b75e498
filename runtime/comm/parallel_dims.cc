#include "runtime/comm/parallel_dims.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/comm/launch.h"

namespace cairn {

ParallelDims MakeParallelDims(const Topology& topology, Transport& transport) {
  std::vector<int> all(transport.size());
  std::iota(all.begin(), all.end(), 0);
  return MakeParallelDims(topology, all, transport);
}

ParallelDims MakeParallelDims(const Topology& topology, const std::vector<int>& ranks, Transport& transport) {
  const Status valid = Validate(topology);
  TORCH_CHECK(valid.ok(), valid.message());
  TORCH_CHECK(static_cast<size_t>(topology.world()) == ranks.size(), "topology ", ToString(topology),
              " needs ", topology.world(), " ranks, and ", ranks.size(), " were started");
  ParallelDims dims;
  dims.topology = topology;
  dims.world_rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), transport.rank()) - ranks.begin());
  const auto group_of = [&](Axis axis) {
    std::vector<int> group = topology.GroupOf(dims.world_rank, axis);
    for (int& member : group) member = ranks[member];
    return group;
  };
  const std::vector<int> pp = group_of(Axis::kPp);
  const bool at_an_end = transport.rank() == pp.front() || transport.rank() == pp.back();
  std::vector<int> embedding{transport.rank()};
  if (topology.pp > 1 && at_an_end) embedding = {pp.front(), pp.back()};
  dims.tp = transport.Split("tp", group_of(Axis::kTp));
  dims.dp = transport.Split("dp", group_of(Axis::kDp));
  dims.pp = transport.Split("pp", pp);
  dims.pp_gradients = transport.Split("pp backward", pp);
  dims.embedding = transport.Split("embedding", embedding);
  dims.world = transport.Split("world", ranks);
  return dims;
}

}  // namespace cairn
