// Rewrites a native step for another TP, PP, DP and ZeRO: the files that training on that topology would have
// written.
//
// Each source byte is read once and verified, each target byte written once, in a fixed window of memory.
// Before the target becomes a step it is read back and its sums compared with the source's. Run, step, model,
// state and history stay: reshaping back restores the first files, bit for bit.
//
// The work is cut into units: some tensors of one stage, with all their pieces in all of its shards. While a
// unit is streamed, the one before it is made durable, read back and recorded (unit_record.h). A killed
// run can therefore be resumed, and several processes can share the units (rank_team.h). The bytes are always
// the same.
#pragma once

#include <functional>
#include <string>

#include "convert/stream/rank_team.h"
#include "convert/stream/step_builder.h"
#include "convert/stream/transfer.h"

namespace cairn {

struct ReshapeOptions {
  Topology target;
  StepBuilderOptions writer;
  // In memory the vocabulary is padded to a multiple of this times TP; 0: the source's multiple.
  uint64_t vocab_multiple = 0;
  // Resumes a killed run of the same reshape, and keeps finished units after an error.
  bool resume = false;
  // False: does not prove what was written; the step's history records it.
  bool read_back = true;
  uint64_t unit_bytes = 0;  // of tensors, at least; 0: by their sum. The same on all ranks
  RankTeam team;
  // Gets the bytes done of TransferCost::moved_bytes, from any thread, one at a time. May be empty.
  std::function<void(uint64_t)> progress;
};

// Plans the pieces of the target. Errors: InvalidArgument if the topology does not fit the model.
Result<StepPlan> PlanReshape(const CheckpointSource& source, const ReshapeOptions& options);

// Estimates the cost; writes nothing. Errors: those of PlanReshape.
Result<TransferCost> EstimateReshape(const CheckpointSource& source, const ReshapeOptions& options);

// Writes `run_dir`/step-N, with the step number of the source; `run_dir` is made if it is missing. Only
// rank 0 of a team gets more than the path.
// Errors: AlreadyExists if the step is there; NoSpace before anything is written; InvalidArgument
// (topology); Corrupt (a source byte that does not match its digest, a target that is not what was read);
// Aborted (another rank failed).
// After an error nothing of the target is left, or with `resume` a partial directory that can be resumed.
Result<TransferResult> Reshape(FileSystem& fs, CheckpointSource& source, const std::string& run_dir,
                               const ReshapeOptions& options);

}  // namespace cairn
