// Rewrites a native step for another TP, PP, DP and ZeRO: the files that training on that topology would have
// written.
//
// Each source byte is read once and verified, each target byte written once, in a fixed window of memory.
// Before the target becomes a step it is read back and its sums compared with the source's. Run, step, model,
// state and history stay, so that reshaping back gives the first files again, bit for bit.
//
// The work is cut into units: some tensors of one stage, with all their pieces in all of its shards. While a
// unit is streamed, the one before it is made durable, read back and recorded (unit_record.h). So a killed
// run can be gone on with, and several processes can share the units (rank_team.h); the bytes are always the
// same.
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
  // In memory the vocabulary is padded to a multiple of this times TP; 0: what the source says.
  uint64_t vocab_multiple = 0;
  // Goes on with what a killed run of the same reshape left, and leaves what is done after an error.
  bool resume = false;
  // False: trusts program and disk; the step's history says so.
  bool read_back = true;
  uint64_t unit_bytes = 0;  // of tensors, at least; 0: by their sum. The same for all who share a reshape
  RankTeam team;
  // Told the bytes done of TransferCost::moved_bytes, from any thread, one at a time. May be empty.
  std::function<void(uint64_t)> progress;
};

// Which pieces the target would have. Errors: InvalidArgument where the topology does not fit the model.
Result<StepPlan> PlanReshape(const CheckpointSource& source, const ReshapeOptions& options);

// What it would take; writes nothing. Errors: InvalidArgument where the topology does not fit the model.
Result<TransferCost> EstimateReshape(const CheckpointSource& source, const ReshapeOptions& options);

// Writes `run_dir`/step-N, with the step number of the source; `run_dir` is made where it is missing. Only
// rank 0 of a team gets more than a path.
// Errors: AlreadyExists where the step is there; NoSpace before anything is written; InvalidArgument
// (topology); Corrupt (a source byte that does not match its digest, a target that is not what was read);
// Aborted (another rank failed).
// After any error nothing of the target is left, or with `resume` a partial directory to go on with.
Result<TransferResult> Reshape(FileSystem& fs, CheckpointSource& source, const std::string& run_dir,
                               const ReshapeOptions& options);

}  // namespace cairn
