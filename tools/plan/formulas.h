// The arithmetic of GPT training in published tables: size, TFLOPs, days.
//
// Sizes count parameters (billions are 10⁹), times are seconds, TFLOPs are 10¹² floating point operations a
// second and GPU. The brief of Cairn's first users is the source; tests/tools/plan/formulas_test.cc holds
// their published rows.
#pragma once

#include "ckpt/model/training_flops.h"
#include "tools/plan/run_setup.h"

namespace cairn {

// The plain formula: 2 operations a parameter, token and pass; `global_batch` counts sequences. One forward
// is 1 pass over the matrices, one backward 2, and recomputing the activations 1 more.
inline double SimpleTflops(double params, double seq, double global_batch, double sec_per_it, double gpus,
                           bool recompute = true) {
  return params * (recompute ? 4 : 3) * 2 * seq * global_batch / (sec_per_it * gpus * 1e12);
}

// TFLOPs of a GPU as in the Megatron-LM paper (2021) and later tables: hardware FLOPs, attention between all
// pairs of positions.
inline double MegatronTflops(const ModelShape& shape, int64_t tp, double global_batch, double sec_per_it,
                             double gpus, Recomputation recompute = Recomputation::kFull) {
  return StepFlops(shape, tp, global_batch, recompute, kAllPairs).hardware / (sec_per_it * gpus * 1e12);
}

// TFLOPs of only the model, as in the logs of Megatron-LM and cairn train: without recomputation, and with
// the half of attention that the causal mask leaves. The ratio to the peak is the MFU.
inline double ModelTflops(const ModelShape& shape, int64_t tp, double global_batch, double sec_per_it,
                          double gpus) {
  return StepFlops(shape, tp, global_batch, Recomputation::kNone, kCausalPairs).model /
         (sec_per_it * gpus * 1e12);
}

inline double DaysToTrain(double iterations, double sec_per_it) { return iterations * sec_per_it / 86400; }

}  // namespace cairn
