// Checks a random part of a step's bytes: a scrub on a budget, a different part every night.
#pragma once

#include <functional>
#include <string_view>

#include "ckpt/step/verify.h"
#include "tools/check/verify_standing.h"

namespace cairn {

struct SampleSize {
  double fraction = 1;  // of all tensors' bytes
  uint64_t max_bytes = UINT64_MAX;
};

// "5%" or "200GB" (kB, MB, GB, TB are powers of 1000, KiB and so on of 1024; B may be left out).
// Errors: InvalidArgument.
Result<SampleSize> ParseSampleSize(std::string_view text);

// The problems, and the bytes that were checked.
struct SampleReport : VerifyReport {
  uint64_t seed = 0;                 // chooses the same chunks of this step again
  uint64_t chunks = 0;               // checked
  std::vector<CheckedRange> ranges;  // read; after a failure only those with problems
};

// Checks random chunks in order of file and offset; at least one if there is any.
SampleReport CheckSample(StepReader& step, const SampleSize& size,
                         const std::function<void(uint64_t)>& progress = {});

}  // namespace cairn
