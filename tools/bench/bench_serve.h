// Our contenders for a benchmark in another program, which decides about order and rounds (tests/bench).
//
// The state of a step is loaded into a file that both map, so that it is in memory once. Then each line of
// stdin asks for one measurement, and one line of JSON on stdout answers:
//   save RUN_DIR         commits the state there          {"stall": s, "flush": s, "commit": s, "durable": s}
//   save_lazy RUN_DIR    the same, copied behind          the same
//   raw_write FILE       O_DIRECT, fsync, removed         {"seconds": s}
//   load STEP_DIR        into the shared memory           {"seconds": s}
//   raw_read FILE        all of FILE, O_DIRECT            {"seconds": s}
//   page_cache_read FILE all of FILE                      {"seconds": s}
//   warm FILE            into the page cache              {}
//   cold FILE            out of the page cache, checked   {}
// The first line of stdout is {"bytes": n, "tensors": [{name, role, dtype, shape, offset}]}. Paths hold no
// newline. Nothing is verified here but what `load` itself verifies: the asker does it.
#pragma once

#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// Until the end of stdin. Errors: the first measurement's to fail.
Status ServeBench(const std::string& checkpoint, const std::string& memory_file);

}  // namespace cairn
