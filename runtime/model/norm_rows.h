// The rows [begin, end) of a norm on one thread of a CPU, by the widest instructions that it has.
#pragma once

#include "runtime/model/norm_core.h"

namespace cairn {

void NormRows(const NormForward<float, float>& norm, int64_t begin, int64_t end);
void NormRows(const NormForward<Bf16, float>& norm, int64_t begin, int64_t end);
void NormRows(const NormForward<Fp16, float>& norm, int64_t begin, int64_t end);

// Adds these rows' part to `grads`.
void NormGradRows(const NormBackward<float, float>& norm, int64_t begin, int64_t end, NormWeightGrads grads);
void NormGradRows(const NormBackward<Bf16, float>& norm, int64_t begin, int64_t end, NormWeightGrads grads);
void NormGradRows(const NormBackward<Fp16, float>& norm, int64_t begin, int64_t end, NormWeightGrads grads);

}  // namespace cairn
