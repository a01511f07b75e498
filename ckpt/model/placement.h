// The places of a model's elements on each rank of a topology, in memory and in the checkpoint's shards.
//
// A pure function of (parameters, topology, rank): no collective is needed to plan a save, and reshape
// computes the target's shards from the target's topology alone.
//
// In memory, a rank's parameters lie one after another in one flat buffer, in the order of the specs,
// without gaps; q, k and v weights that follow each other are therefore one fused matrix. Experts have a
// buffer of their own, since other ranks hold the same experts. A buffer is padded at its end to divide into
// equal partitions, one for each rank of its data parallel axis (dp, or edp of experts): ZeRO gives partition
// d to rank d. In the checkpoint, rank d writes the elements of partition d, for every role and every ZeRO
// stage: each byte is written once and the work is shared. A tensor that is not cut along an axis is written
// by one of the axis' ranks (in turn), a tied embedding by the first stage.
#pragma once

#include <vector>

#include "ckpt/model/slice.h"

namespace cairn {

inline constexpr uint64_t kPartitionAlign =
    64;  // elements; a ZeRO partition starts on a cache line for any dtype

struct LocalParameter : Slice {
  uint32_t index = 0;       // into the specs
  Axis data = Axis::kDp;    // whose buffer it lies in
  uint64_t flat_begin = 0;  // elements from the start of that buffer
  bool writes = false;      // this rank, or one that differs along `data` only, writes it to the checkpoint

  FlatRange flat_range() const { return {flat_begin, flat_begin + shape.Volume()}; }
};

// A flat buffer, and the partitions that the ranks of its data parallel axis have of it.
struct FlatBuffer {
  uint64_t size = 0;            // elements in use
  uint64_t partition_size = 0;  // elements of each partition; all of them together hold at least `size`
  FlatRange Partition(int data_rank) const {
    return {data_rank * partition_size, (data_rank + 1) * partition_size};
  }
};

struct RankLayout {
  std::vector<LocalParameter> parameters;
  FlatBuffer dense, experts;
  const FlatBuffer& buffer(Axis data) const { return data == Axis::kEdp ? experts : dense; }
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

// The buffers of a rank. Ranks that differ along dp only, and hold the same experts, have equal ones.
// Errors: InvalidArgument naming the tensor whose dimension TP does not divide, or if PP exceeds the layers.
Result<RankLayout> LayoutOf(const std::vector<ParameterSpec>& specs, const Topology& topology, int rank);

// One piece that a rank writes: `range` of the row-major order of `box` of parameter `index`.
struct PlacedPiece {
  uint32_t index = 0;  // into the specs
  Box box;
  FlatRange range;          // within box
  uint64_t flat_begin = 0;  // its start in the parameter's buffer, elements; contiguous in the buffer
};

// The pieces of a layout that the rank writes, in the order of the specs.
std::vector<PlacedPiece> PiecesOf(const RankLayout& layout, const Topology& topology, int rank);

}  // namespace cairn
