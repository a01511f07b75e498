// What one rank of `cairn train` holds in tensors.
//
// Its own layout, counted from its code and checked against it on CPUs (tests/interop/test_plan_memory.py):
// gradients in fp32 on every rank, master and moments cut by ZeRO-1, attention with dropout through kept
// probabilities.
#pragma once

#include "tools/plan/memory_model.h"

namespace cairn {

// `base_gb`: memory of a GPU other than tensors. ZeRO 0 and 1, full or no recomputation, one chunk a stage.
PipelineMemory CairnMemoryOf(const ModelShape& shape, const RunSetup& setup, double base_gb);

}  // namespace cairn
