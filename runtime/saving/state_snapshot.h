// The snapshot of one rank's state: the pieces that it writes, laid out as its shard.
#pragma once

#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/saving/checkpointer_options.h"
#include "runtime/snapshot/snapshot.h"

namespace cairn {

// The tensors of the model in every role that a rank holds, by parameter; without random states.
std::vector<TensorEntry> TensorsOf(const StateBuffers& buffers);

// Memory for a copy of the buffers. Which pieces the rank writes follows from the placement alone.
// `tensors`: TensorsOf(buffers); `run`: the run's identity. The bases of a copy (Snapshot::Base) are the
// parts of the buffers, in order, and then the random state. Errors: NoSpace, and those of the device.
Result<std::unique_ptr<Snapshot>> MakeStateSnapshot(const StateBuffers& buffers,
                                                    std::vector<TensorEntry> tensors,
                                                    const CheckpointerOptions& options,
                                                    const std::string& run, int rank);

}  // namespace cairn
