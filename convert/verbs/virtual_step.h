// A native step of another topology that is metadata only: its own index and manifest, and the shards of
// another step. FORMAT.md, "Virtual steps".
//
// Its cost depends on the catalog, not on the tensors. Loads, verifies and reshapes like any other step, as
// long as the relative path to the shards stays valid. Cairn no longer retires them (step_hold.h).
#pragma once

#include <string>

#include "ckpt/step/step_reader.h"
#include "convert/verbs/reshape.h"

namespace cairn {

struct VirtualStep {
  std::string path;    // of the new step
  std::string shards;  // where its shards are
  uint64_t bytes_written = 0;
  Status held;  // OK if the source's step is kept from retention; else why not: its run may be read-only
};

// About the bytes of its two files, which depend on the path to the shards. Writes nothing.
Result<uint64_t> EstimateVirtualBytes(const StepReader& source, const ReshapeOptions& options);

// Writes `run_dir`/step-N, with the step number of the source. Reads target and vocab_multiple of `options`.
// Errors: AlreadyExists if the step exists or another process writes into the directory; InvalidArgument
// (topology); Corrupt (a catalog with holes). After an error nothing of the target is left.
Result<VirtualStep> ReshapeVirtually(FileSystem& fs, const StepReader& source, const std::string& run_dir,
                                     const ReshapeOptions& options);

}  // namespace cairn
