// The few constants of the planner that do not follow from first principles, and the prior of each.
//
// All are positive; their logarithms are normally distributed about log(mean) with standard deviation
// `spread`. They are shares of the hardware's speed, or bytes and passes of a program, and therefore carry
// over from one cluster to another; `pace` is the remaining difference of whole clusters and programs. Means
// and spreads are wide enough for the clusters whose runs are compiled in (two of A100-80, 1.35 times apart,
// and one of H100). The priors of CPUs are much wider: the effect of their caches, of their libraries and of
// MPI between their processes is known only to an order of magnitude.
#pragma once

#include <span>

namespace cairn {

inline constexpr double kGiga = 1e9;

template <typename Constants>
struct ConstantInfo {
  double Constants::*field;
  double mean;
  double spread;
};

struct TimeConstants {
  double matmul, depth, misaligned, memory, softmax, attention, attention_misaligned, attention_128, link,
      weight_bytes, launch, hand_over, network, head, latency, whole, flash, sequence, overlap, fp8, pace;
};
std::span<const ConstantInfo<TimeConstants>> TimeConstantInfos(bool cpu = false);

struct MemoryConstants {
  double weights, optimizer, kept, working, logits, unsharded, base_gb;
};
std::span<const ConstantInfo<MemoryConstants>> MemoryConstantInfos();

}  // namespace cairn
