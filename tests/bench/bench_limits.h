// The machine's own limits: memory, page cache, disk, digests. Nothing of ours is held to anything here;
// what raw reads bring is compared with what was written.
#pragma once

#include "tests/bench/bench_save.h"

namespace cairn {

Result<BenchResult> MeasureLimits(const BenchOptions& options);

}  // namespace cairn
