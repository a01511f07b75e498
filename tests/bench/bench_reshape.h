// cairn-bench reshape: another TP and PP for a step on disk, against one read and one write of its bytes.
#pragma once

#include "tests/bench/bench_options.h"
#include "tests/bench/bench_save.h"

namespace cairn {

// Runs `cairn reshape` as its users do, in a process of its own, with the default window of memory.
// Errors: those of the disk; NoSpace.
Result<BenchResult> MeasureReshape(const BenchOptions& options);

}  // namespace cairn
