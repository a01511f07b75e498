// Keeps a step from being retired while a virtual step elsewhere uses its shards. FORMAT.md, "Virtual steps".
#pragma once

#include <string>

#include "ckpt/io/file_system.h"

namespace cairn {

// Writes RUN/held/step-N.NONCE, durably; the nonce follows from `holder`, the absolute path of the step that
// will use the shards. Writes nothing if `step_dir` does not have the name of a committed step, because
// nothing retires it then.
Status HoldStep(FileSystem& fs, const std::string& step_dir, const std::string& holder);

// The step that uses the shards of RUN/step-N; empty if there is none any more. One that was announced less
// than an hour ago counts even if it is not there yet.
Result<std::string> HolderOf(FileSystem& fs, const std::string& run_dir, int64_t step);

}  // namespace cairn
