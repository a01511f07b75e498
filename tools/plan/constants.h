// The few constants of the planner that do not follow from first principles, and the prior of each.
//
// All are positive; their logarithms are normally distributed about log(mean) with standard deviation
// `spread`. They are shares of what the hardware can do or bytes and passes of what a program does, so that
// constants fitted on one cluster carry over to another; what whole clusters and programs differ by beside
// them is `pace`. Means and spreads are wide enough for the clusters whose runs are compiled in (runs of two
// on A100-80, 1.35 times apart, and of one on H100). Of CPUs much less is believed than of GPUs: what their
// caches, their libraries and MPI between their processes give is known to an order of magnitude only.
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
