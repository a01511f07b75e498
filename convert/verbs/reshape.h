// Rewrites a native step for another TP, PP, DP, EP and ZeRO: the files that training on that topology would
// have written.
//
// Run, step, model, state and history stay: reshaping back restores the first files, bit for bit. A killed
// run can be resumed, and several processes can share the work (transfer.h): the bytes are always the same.
#pragma once

#include "convert/transfer/transfer.h"

namespace cairn {

struct ReshapeOptions {
  Topology target;
  WriterOptions writer;
  // In memory the vocabulary is padded to a multiple of this times TP; 0: the source's multiple.
  uint64_t vocab_multiple = 0;
  // Resumes a killed run of the same reshape, and keeps finished units after an error.
  bool resume = false;
  // False: does not prove what was written; the step's history records it.
  bool read_back = true;
  uint64_t unit_bytes = 0;  // of tensors, at least; 0: by their sum. The same on all ranks
  RankTeam team;
};

// The pieces of the target. Errors: InvalidArgument if the topology does not fit the model.
Result<StepPlan> PlanShards(const CheckpointSource& source, const ReshapeOptions& options);

// Writes RUN/step-N, with the step number of the source. Errors: those of PlanShards.
Result<Transfer> PlanReshape(CheckpointSource& source, const ReshapeOptions& options);

}  // namespace cairn
