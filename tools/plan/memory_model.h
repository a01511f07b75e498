// The memory of one GPU of each pipeline stage, from first principles.
#pragma once

#include "ckpt/model/shape.h"
#include "tools/plan/constants.h"
#include "tools/plan/run_setup.h"

namespace cairn {

// GB (10⁹ bytes) of one GPU.
struct StageMemory {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double in_flight = 0;    // activations kept for the backward of the micro-batches on their way
  double activations = 0;  // of the layer, or the loss, at work
  double buffers = 0;      // independent of the model
  double Total() const { return parameters + gradients + optimizer + in_flight + activations + buffers; }
};

struct PipelineMemory {
  StageMemory first;   // holds the embedding, and the most micro-batches in flight
  StageMemory middle;  // the second stage; the first if there are fewer than three
  StageMemory last;    // holds the output layer; the first if there is one stage
  double Peak() const { return std::max({first.Total(), middle.Total(), last.Total()}); }
};

PipelineMemory MemoryOf(const ModelShape& shape, const RunSetup& setup, const MemoryConstants& constants);

}  // namespace cairn
