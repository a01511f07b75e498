// The mesh of ranks that trains a model: its size along each axis, and which rank sits where.
//
// Ranks are counted as Megatron counts them, the first axis fastest: tp, dp, pp. Experts are spread over the
// same ranks by axes of their own: etp, ep, edp, pp. So tp * dp = etp * ep * edp, and a tensor parallel group
// lies within a node. Each axis is a size and a stride; no other file multiplies coordinates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// The numbers of axes that can cut a parameter are stored in catalogs.
enum class Axis : uint8_t {
  kTp = 0,   // tensor parallel
  kEtp = 1,  // tensor parallel, of experts
  kEp = 2,   // expert parallel: each rank has some of the experts
  kDp = 3,   // data parallel
  kEdp = 4,  // data parallel, of experts
  kPp = 5,   // pipeline stages
};

// Axes that can cut a dense parameter, and one of experts.
inline constexpr Axis kDenseAxes[] = {Axis::kTp}, kExpertAxes[] = {Axis::kEtp, Axis::kEp};

struct Topology {
  int tp = 1;    // tensor parallel size
  int pp = 1;    // pipeline stages
  int dp = 1;    // data parallel replicas
  int zero = 0;  // ZeRO stage; it divides the computation, never changes where bytes lie (placement.h)

  // Interleaved schedule: each pipeline rank holds this many chunks of layers; chunk c lies on rank c % pp.
  int virtual_stages = 1;
  // Transformer layers of each of the pp * virtual_stages chunks; empty: as even as can be (placement.h).
  std::vector<int> layers_per_stage = {};

  int ep = 1;   // expert parallel size
  int etp = 0;  // tensor parallel size of experts; 0: tp

  int world() const { return tp * pp * dp; }
  int stage_size() const { return tp * dp; }  // ranks of a pipeline stage, which follow each other
  int size(Axis axis) const;
  int Coordinate(int rank, Axis axis) const { return rank / Stride(axis) % size(axis); }
  // The rank at `coordinate` of the axis that differs from `rank` along this axis only.
  int Moved(int rank, Axis axis, int coordinate) const {
    return rank + (coordinate - Coordinate(rank, axis)) * Stride(axis);
  }
  // All ranks that differ from `rank` along the axis only, itself among them, in their order.
  std::vector<int> GroupOf(int rank, Axis axis) const;
  bool operator==(const Topology&) const = default;

 private:
  int Stride(Axis axis) const;  // between neighbours along the axis
};

inline constexpr int kMaxWorld = 1 << 20;  // larger manifests are refused

// "TP=2 PP=2 DP=1 ZeRO=1", then values that are not the default: " VP=2 layers=3,5 EP=4 ETP=1"
std::string ToString(const Topology& topology);

// Errors: InvalidArgument if a size is below 1, the product exceeds kMaxWorld, the ZeRO stage is unknown,
// layers_per_stage does not name every chunk, or the ranks of a stage cannot be divided for the experts.
Status Validate(const Topology& topology);

}  // namespace cairn
