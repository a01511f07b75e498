// The mesh as one rank sees it: where it sits, and the group it forms on each axis.
//
// An axis is a direction of the mesh (ckpt/model/topology.h); a dim belongs to a tensor.
#pragma once

#include <vector>

#include "ckpt/model/topology.h"
#include "runtime/comm/process_group.h"

namespace cairn {

class Transport;

struct ParallelDims {
  Topology topology;
  int world_rank = 0;
  int at(Axis axis) const { return topology.Coordinate(world_rank, axis); }  // its coordinate

  ProcessGroup tp;            // same pp and dp
  ProcessGroup dp;            // same tp and pp
  ProcessGroup pp;            // same tp and dp
  ProcessGroup pp_gradients;  // the same ranks: the messages of the backward pass
  ProcessGroup embedding;  // first and last stage of a pipeline, for tied embedding gradients; middle stages:
                           // only this rank
  ProcessGroup world;
};

// Creates the groups, on all ranks in one fixed order. Collective over the world.
// Errors: c10::Error when tp * pp * dp is not the number of ranks that were started.
ParallelDims MakeParallelDims(const Topology& topology, Transport& transport);

// A mesh over `ranks` of the world, of which this is one, in rank order. Still collective over the world:
// each rank that takes no part makes a mesh of itself. world_rank and `world` count within the mesh.
ParallelDims MakeParallelDims(const Topology& topology, const std::vector<int>& ranks, Transport& transport);

}  // namespace cairn
