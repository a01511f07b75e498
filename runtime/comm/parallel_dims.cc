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
  const Coordinates at = dims.at = topology.At(dims.world_rank);
  std::vector<int> tp, dp, pp;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Coordinates other = topology.At(static_cast<int>(rank));
    if (other.pp == at.pp && other.dp == at.dp) tp.push_back(ranks[rank]);
    if (other.tp == at.tp && other.pp == at.pp) dp.push_back(ranks[rank]);
    if (other.tp == at.tp && other.dp == at.dp) pp.push_back(ranks[rank]);
  }
  std::vector<int> embedding{transport.rank()};
  if (topology.pp > 1 && (at.pp == 0 || at.pp == topology.pp - 1)) embedding = {pp.front(), pp.back()};
  dims.tp = transport.Split("tp", tp);
  dims.dp = transport.Split("dp", dp);
  dims.pp = transport.Split("pp", pp);
  dims.pp_gradients = transport.Split("pp backward", pp);
  dims.embedding = transport.Split("embedding", embedding);
  dims.world = transport.Split("world", ranks);
  return dims;
}

}  // namespace cairn
