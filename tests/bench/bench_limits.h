// The machine's own limits: memory, page cache, disk, digests. No goal is checked here;
// the bytes of raw reads are compared with the written ones.
#pragma once

#include "tests/bench/bench_save.h"

namespace cairn {

Result<BenchResult> MeasureLimits(const BenchOptions& options);

}  // namespace cairn
