// A native step of another topology that is metadata only: an index and a manifest of its own, over the
// shards of a step that is there. FORMAT.md, "Virtual steps".
//
// Takes time for the catalog, not for the tensors. Loads, verifies and reshapes as any other step, for as
// long as the shards stay where they are, seen from it; Cairn itself retires them no more (step_hold.h).
#pragma once

#include <string>

#include "ckpt/step/step_reader.h"
#include "convert/verbs/reshape.h"

namespace cairn {

struct VirtualResult {
  std::string directory;  // of the new step
  std::string shards;     // where its shards are
  uint64_t bytes_written = 0;
  Status held;  // the source's step is kept from retention; or why not, where its run is read-only
};

// Bytes of its two files, about: they depend on how far away the shards are. Writes nothing.
Result<uint64_t> EstimateVirtualBytes(const StepReader& source, const ReshapeOptions& options);

// Writes `run_dir`/step-N, with the step number of the source. Of `options` the target and vocab_multiple
// count. Errors: AlreadyExists where the step is there or another process writes into the directory;
// InvalidArgument (topology); Corrupt (a catalog with holes). After an error nothing of the target is left.
Result<VirtualResult> ReshapeVirtually(FileSystem& fs, const StepReader& source, const std::string& run_dir,
                                       const ReshapeOptions& options);

}  // namespace cairn
