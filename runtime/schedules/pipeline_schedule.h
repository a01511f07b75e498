// The work of each stage of a pipeline in a step, as data: a list of forwards and backwards, in its order.
//
// Each of `stages` ranks holds `chunks` parts of the model; chunk c of stage s is part c * stages + s, so
// that activations go round the stages once for each chunk. What a stage receives and sends follows from its
// actions: a forward needs the activations of the previous part and a backward the gradient of the next part,
// of the same micro-batch. The functions here are pure; train/pipeline.h does what they say.
#pragma once

#include <cstdint>
#include <vector>

namespace cairn {

struct PipelineShape {
  int stages = 1;
  int chunks = 1;  // of each stage
  int64_t micro_batches = 1;

  int parts() const { return stages * chunks; }
};

struct StageAction {
  enum class Kind { kForward, kBackward };
  Kind kind;
  int64_t micro_batch;
  int chunk;
  bool operator==(const StageAction&) const = default;
};

using StageSchedule = std::vector<StageAction>;

// In all schedules a chunk takes the micro-batches in order, forward and backward, so gradients add up in the
// same order under every schedule.

// All forwards, then all backwards (Huang et al. 2019): holds the activations of all micro-batches. One
// chunk.
StageSchedule GPipe(const PipelineShape& shape, int stage);

// Narayanan et al. 2019, "PipeDream-Flush": as many forwards as there are later stages, then one forward and
// one backward in turn: holds the activations of at most `stages` micro-batches. One chunk.
StageSchedule OneForwardOneBackward(const PipelineShape& shape, int stage);

// Narayanan et al. 2021, section 2.2: the same with several chunks, in Megatron-LM's order: `stages`
// micro-batches through one chunk, then through the next. Requires micro_batches % stages == 0.
StageSchedule Interleaved(const PipelineShape& shape, int stage);

// Only forwards, for evaluation: in the order of Interleaved, for any number of micro-batches.
StageSchedule ForwardOnly(const PipelineShape& shape);

}  // namespace cairn
