// The machine's own limits: memory, page cache, disk, digests. Nothing of ours is held to anything here.
#pragma once

#include "tools/bench_options.h"

namespace cairn {

Result<Samples> MeasureLimits(const BenchOptions& options);

}  // namespace cairn
