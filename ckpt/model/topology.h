// The mesh of ranks that trains a model: tensor, pipeline and data parallel sizes, and which rank sits where.
//
// Rank order is Megatron's: tensor parallel fastest, then data parallel, then pipeline:
//   rank = (pp_rank * dp + dp_rank) * tp + tp_rank
// A tensor parallel group therefore lies within a node.
#pragma once

#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

struct Coordinates {
  int tp = 0;
  int pp = 0;
  int dp = 0;
  bool operator==(const Coordinates&) const = default;
};

struct Topology {
  int tp = 1;    // tensor parallel size
  int pp = 1;    // pipeline stages
  int dp = 1;    // data parallel replicas
  int zero = 0;  // ZeRO stage; it divides the computation, never changes where bytes lie (placement.h)

  // Interleaved schedule: each pipeline rank holds this many chunks of layers; chunk c lies on rank c % pp.
  int virtual_stages = 1;
  // Transformer layers of each of the pp * virtual_stages chunks; empty: as even as can be (placement.h).
  std::vector<int> layers_per_stage;

  int world() const { return tp * pp * dp; }
  int RankOf(Coordinates at) const { return (at.pp * dp + at.dp) * tp + at.tp; }
  Coordinates At(int rank) const { return {rank % tp, rank / (tp * dp), rank / tp % dp}; }
  bool operator==(const Topology&) const = default;
};

inline constexpr int kMaxWorld = 1 << 20;  // larger manifests are refused

// "TP=2 PP=2 DP=1 ZeRO=1", then values that are not the default: " VP=2 layers=3,5"
std::string ToString(const Topology& topology);

// Errors: InvalidArgument if a size is below 1, the product exceeds kMaxWorld, the ZeRO stage is unknown or
// layers_per_stage does not name every chunk.
Status Validate(const Topology& topology);

}  // namespace cairn
