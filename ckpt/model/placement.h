// The places of a model's elements on each rank of a topology, in memory and in the checkpoint's shards.
//
// A pure function of (parameters, topology, rank): no collective is needed to plan a save, and reshape
// computes the target's shards from the target's topology alone.
//
// In memory, a rank's parameters lie one after another in one flat buffer, in the order of the specs,
// without gaps; q, k and v weights that follow each other are therefore one fused matrix. The buffer is
// padded at its end to divide into dp equal partitions: ZeRO gives partition d to data parallel rank d. In
// the checkpoint, data parallel rank d writes the elements of partition d, for every role and every ZeRO
// stage: each byte is written once and the work is shared. A tensor that all tensor parallel ranks hold is
// written by one of them (in turn), a tied embedding by the first stage.
#pragma once

#include <vector>

#include "ckpt/model/tensor.h"
#include "ckpt/model/topology.h"

namespace cairn {

inline constexpr uint64_t kPartitionAlign =
    64;  // elements; a ZeRO partition starts on a cache line for any dtype

struct LocalParameter {
  uint32_t index = 0;  // into the specs
  Box box;  // global coordinates, clipped to the true shape; empty extent: this rank holds padding only
  Dims local_shape;         // in memory, with vocabulary padding; the box's rows come first
  uint64_t flat_begin = 0;  // elements from the start of the rank's buffer
  bool writes = false;      // this (tp, pp) position writes it to the checkpoint
};

struct RankLayout {
  std::vector<LocalParameter> parameters;
  uint64_t flat_size = 0;  // elements in use
  uint64_t partition_size =
      0;  // elements of one of the dp equal partitions; dp * partition_size >= flat_size
  FlatRange Partition(int dp_rank) const {
    return {dp_rank * partition_size, (dp_rank + 1) * partition_size};
  }
};

// Layers of each stage: as even as can be, the first stages take the remainder. Requires 1 <= pp <= layers.
std::vector<int> LayersPerStage(int layers, int pp);

// The stage that owns `layer` (or kBeforeLayers, kAfterLayers).
int StageOf(int layer, const std::vector<int>& layers_per_stage);

// Layers of each of the topology's pp * virtual_stages chunks: its own list, or as even as can be. Chunk c
// lies on stage c % pp. Errors: InvalidArgument if its list does not add up to `layers`, or there are more
// chunks than layers.
Result<std::vector<int>> LayersPerChunk(int layers, const Topology& topology);

// Number of transformer layers among the specs: highest layer + 1.
int CountLayers(const std::vector<ParameterSpec>& specs);

// The buffer of any rank at (tp_rank, pp_rank); data parallel ranks share it.
// Errors: InvalidArgument naming the tensor whose dimension TP does not divide, or if PP exceeds the layers.
Result<RankLayout> LayoutOf(const std::vector<ParameterSpec>& specs, const Topology& topology, int tp_rank,
                            int pp_rank);

// One piece that a rank writes: `range` of the row-major order of `box` of parameter `index`.
struct PlacedPiece {
  uint32_t index = 0;  // into the specs
  Box box;
  FlatRange range;          // within box
  uint64_t flat_begin = 0;  // its start in the rank's buffer, elements; it is contiguous there
};

// The pieces of a layout that data parallel rank `dp_rank` writes, in buffer order.
std::vector<PlacedPiece> PiecesOf(const RankLayout& layout, int dp_rank);

}  // namespace cairn
