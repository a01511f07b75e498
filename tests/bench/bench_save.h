// Our own save and load against raw transfers of the same bytes, in the same rounds.
#pragma once

#include "tests/bench/bench_options.h"

namespace cairn {

struct BenchResult {
  Samples samples;
  std::vector<GoalRatio> goals;
  uint64_t verified_bytes = 0;  // read back or compared, in all rounds; a difference ends the run
};

// Copy into the arena against memcpy, flush against a raw O_DIRECT writer. Every step that is timed is read
// back and verified first.
Result<BenchResult> MeasureSave(const BenchOptions& options);

// Verified load against a plain read from the page cache, and against O_DIRECT reads where the file is cold.
// Every load is compared with the state.
Result<BenchResult> MeasureLoad(const BenchOptions& options);

}  // namespace cairn
