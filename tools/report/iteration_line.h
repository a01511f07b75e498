// The line that a training prints every iteration, or every few, in the form of Megatron-LM and its
// descendants:
//
//   iteration 5/ 100 | consumed samples: 40 | elapsed time per iteration (ms): 9000.1 | ... | lm
//   loss: 6.9E+00 |
//
// Fields come in any order, under any name of any version; any may be missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "tools/report/numbers.h"

namespace cairn {

struct IterationLine {
  int64_t iteration = -1;
  int64_t total = -1;          // "N/ M"
  double seconds = kNoNumber;  // of one iteration
  double samples_per_second = kNoNumber;
  int64_t consumed_samples = -1;
  int64_t consumed_tokens = -1;
  int64_t global_batch = -1;
  double loss = kNoNumber;
  double grad_norm = kNoNumber;
  double tflops = kNoNumber;  // by the program's own count
  double validation_loss = kNoNumber;
  int64_t skipped = 0;  // iterations of this line
  int64_t nans = 0;
  int64_t skipped_so_far = -1;  // since the start of the program; by DeepSpeed
  bool nan_loss = false;        // the loss is written as nan or inf
};

// Calls `take` for each iteration that `text` reports: two if a line end was lost. Lines that only mention an
// iteration ("saved checkpoint at iteration 5") do not count.
void ParseIterations(std::string_view text, const std::function<void(const IterationLine&)>& take);

// DeepSpeed's own lines:
//   steps: 10 loss: 8.9013 iter time (s): 1.234 samples/sec: 25.9
//   [Rank 0] step=10, skipped=2, lr=[1e-05], mom=[(0.9, 0.999)]
//   epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec=25.7, ...
//   0/10, SamplesPerSec=12.3
std::optional<IterationLine> ParseDeepSpeed(std::string_view text);

// Lines of torchtitan, whose dates tell the time, and of nanoGPT. A line with a validation loss has no more.
//   step: 14  loss:  3.24405  grad_norm:  0.8319  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52
//   validate step: 14  loss:  3.2  memory: ...  tps: 7,282
//   iter 2920: loss 3.9883, time 1099.34ms, mfu 15.34%
//   step 3000: train loss 4.0390, val loss 4.0427
std::optional<IterationLine> ParseStep(std::string_view text);

}  // namespace cairn
