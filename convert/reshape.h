// Rewrites a native step for another TP, PP, DP and ZeRO: the files that training on that topology would have
// written.
//
// One pass: each source byte is read once and verified, each target byte written once, in a fixed window of
// memory. Before the target becomes a step it is read back and its fingerprint compared with the source's.
// Run, step, model, state and history stay, so that reshaping back gives the first files again, bit for bit.
#pragma once

#include <functional>
#include <string>

#include "convert/fingerprint.h"
#include "convert/step_builder.h"

namespace cairn {

struct ReshapeOptions {
  Topology target;
  StepBuilderOptions writer;
  // Told the bytes done of ReshapeCost::moved_bytes. May be empty.
  std::function<void(uint64_t)> progress;
};

struct ReshapeCost {
  uint64_t data_bytes = 0;   // of all tensors
  uint64_t file_bytes = 0;   // of the target, about
  uint64_t files = 0;        // of the target
  uint64_t moved_bytes = 0;  // tensor data that passes through memory: once to write it, once to prove it
  uint64_t peak_memory = 0;  // about
};

// What it would take; writes nothing. Errors: InvalidArgument where the topology does not fit the model.
Result<ReshapeCost> EstimateReshape(const CheckpointSource& source, const ReshapeOptions& options);

struct ReshapeResult {
  std::string directory;  // of the new step
  Fingerprints fingerprints;
  uint64_t bytes_read = 0;     // of the source's shards
  uint64_t bytes_written = 0;  // of all files
  uint64_t files = 0;
};

// Writes `run_dir`/step-N, with the step number of the source; `run_dir` is made where it is missing.
// Errors: AlreadyExists where the step is there; NoSpace before anything is written; InvalidArgument
// (topology); Corrupt (a source byte that does not match its digest, a target that is not what was read).
// After any error nothing of the target is left.
Result<ReshapeResult> Reshape(FileSystem& fs, CheckpointSource& source, const std::string& run_dir,
                              const ReshapeOptions& options);

}  // namespace cairn
