// The time of one iteration of a topology, from first principles.
//
// A layer is matrix products (cut by TP, with tile and wave quantization), batched products and softmax of
// attention, elementwise kernels at the speed of memory, all-reduces of TP, the all-to-all of a mixture of
// experts, and the traffic of weights and gradients. A stage is its layers, with the embedding in front or
// the output layer behind; the slowest stage sets the beat of the pipeline (1F1B), and filling and draining
// it is the bubble. Gradients and ZeRO's weights then cross the network. If ranks share cores, an iteration
// takes at least as long as all their work on those cores.
#pragma once

#include "tools/plan/constants.h"
#include "tools/plan/iteration_work.h"

namespace cairn {

// Seconds of one layer and one micro-batch, forward and backward (and recomputation).
struct LayerTime {
  double products = 0;
  double attention = 0;
  double elementwise = 0;
  double tensor_parallel = 0;
  double dispatch = 0;  // of tokens to their experts, and back
  double weights = 0;
  double launch = 0;
  double latency = 0;  // of the collectives, however short: waiting, without work
  double Work() const {
    return products + attention + elementwise + tensor_parallel + dispatch + weights + launch;
  }
  double Total() const { return Work() + latency; }
};

// Seconds of one iteration.
struct IterationTime {
  LayerTime layer;
  double slowest_stage = 0;  // of one micro-batch
  double hand_over = 0;      // of one micro-batch between two stages, as far as not hidden
  double steady = 0;         // micro-batches * slowest_stage
  double bubble = 0;         // filling and draining the pipeline
  double turns = 0;          // waiting for a core, if ranks share them
  double data_parallel = 0;  // gradients, and weights under ZeRO
  double optimizer = 0;
  double Total() const { return steady + bubble + turns + data_parallel + optimizer; }
};

IterationTime TimeOf(const IterationWork& work, const TimeConstants& constants);
IterationTime TimeOf(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster,
                     const TimeConstants& constants);

}  // namespace cairn
