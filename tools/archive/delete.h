// Removes a source that was archived. It takes a proof, not a promise.
#pragma once

#include <string>

#include "tools/archive/run.h"

namespace cairn {

// Removes the step that `copy` is a copy of. Refuses, with InvalidArgument, where the directory holds
// anything that the copy does not, where the store lies within it, and for the newest step of a run that a
// training is writing into; with Corrupt where it was saved anew since.
Status DeleteSource(FileSystem& fs, const std::string& step_dir, const std::string& store,
                    const ProvenCopy& copy);

}  // namespace cairn
