#include "tools/plan/constants.h"

#include <array>

namespace cairn {
namespace {

using T = TimeConstants;
constexpr ConstantInfo<T> kTime[] = {
    {&T::matmul, 0.76, 0.08},              // share of peak that a large matrix product of whole tiles reaches
    {&T::depth, 150, 0.4},                 // depth of a product at which half of that is reached
    {&T::misaligned, 0.95, 0.05},          // speed of products with a side that is not a multiple of 64
    {&T::memory, 0.75, 0.15},              // share of memory bandwidth that elementwise kernels reach
    {&T::softmax, 6, 0.2},                 // times that the attention scores cross memory in a forward pass
    {&T::attention, 0.45, 0.2},            // share of peak of attention's batched products
    {&T::attention_misaligned, 0.1, 0.3},  // their speed if the head dimension is not a multiple of 8
    {&T::attention_128, 0.6, 0.6},         // their speed at 128; two clusters measured 0.2 and 0.7
    {&T::link, 0.42, 0.25},      // share of the link's speed that an all-reduce within a node reaches
    {&T::weight_bytes, 9, 0.3},  // bytes of weights and gradients a parameter and micro-batch
    {&T::launch, 4e-4, 1.0},     // seconds a layer and micro-batch that nothing else explains
    {&T::hand_over, 0.4, 0.6},   // share of activations between stages that is not hidden
    {&T::network, 0.7, 0.4},     // share of the node's network speed that collectives reach
    {&T::head, 0.95, 0.12},      // cost of output layer and loss against that of such a product
    {&T::latency, 5e-6, 0.5},    // seconds of each round of a collective, however short
    {&T::whole, 25, 0.3},        // times that kernels that TP does not cut read or write the input, each way
    {&T::flash, 0.5, 0.3},       // share of peak of flash attention
    {&T::sequence, 0.4, 0.4},    // share of TP's collectives that sequence parallelism does not hide
    {&T::overlap, 0.4, 0.7},     // share of data-parallel collectives that is not hidden
    {&T::fp8, 1.4, 0.15},        // speed of a layer's products in FP8, with their casts, against 16 bits
    {&T::pace, 0.92, 0.2},       // seconds of this cluster and program against all that the others explain
};

// Peaks are measured ones; activations may lie in caches, which are faster than memory; ranks communicate
// through copies in shared memory and wait by polling.
struct Belief {
  double T::*field;
  double mean, spread;
};
constexpr Belief kOfCpus[] = {
    {&T::matmul, 0.9, 0.3},    {&T::depth, 15, 1.0},    {&T::memory, 1.0, 1.0},      {&T::softmax, 8, 1.0},
    {&T::attention, 0.5, 0.7}, {&T::link, 0.1, 1.5},    {&T::weight_bytes, 10, 0.7}, {&T::launch, 1e-3, 1.0},
    {&T::hand_over, 1.0, 1.5}, {&T::network, 0.5, 1.0}, {&T::head, 1.0, 0.7},        {&T::latency, 1e-4, 1.5},
    {&T::whole, 16, 0.3},      {&T::overlap, 1.0, 0.2}, {&T::pace, 1.0, 0.05}};

constexpr auto kTimeOfCpus = [] {
  auto infos = std::to_array(kTime);
  for (auto& info : infos)
    for (const Belief& belief : kOfCpus)
      if (info.field == belief.field) info.mean = belief.mean, info.spread = belief.spread;
  return infos;
}();

using M = MemoryConstants;
constexpr ConstantInfo<M> kMemory[] = {
    {&M::weights, 1, 0.2},     // weights and their gradients against the bytes that the program gives them
    {&M::optimizer, 1, 0.15},  // optimizer against its bytes (master, two moments, and DeepSpeed's fp32
                               // gradient), spread by ZeRO
    {&M::kept, 1, 0.2},        // inputs of layers kept for recomputation, against their bytes
    {&M::working, 1.5, 0.5},   // activations of the layer at work, against their bytes
    {&M::logits, 8, 0.4},      // bytes a token and vocabulary entry of the last stage
    {&M::unsharded, 4, 0.7},   // bytes a parameter more without ZeRO
    {&M::base_gb, 6, 0.5},     // GB that do not depend on the model: contexts, communicators, fragments
};

}  // namespace

std::span<const ConstantInfo<TimeConstants>> TimeConstantInfos(bool cpu) {
  if (cpu) return kTimeOfCpus;
  return kTime;
}
std::span<const ConstantInfo<MemoryConstants>> MemoryConstantInfos() { return kMemory; }

}  // namespace cairn
