// The snapshot kernels (snapshot_core.h), to be called from C++ without nvcc. They return once enqueued.
#pragma once

#include <cuda_runtime_api.h>

#include "runtime/snapshot/snapshot_core.h"

namespace cairn {

// All pointers of `slot` are device memory, but for digests, which may be pinned host memory.
cudaError_t LaunchPack(const SlotView& slot, cudaStream_t stream);
cudaError_t LaunchChain(const SlotView& slot, cudaStream_t stream);  // after LaunchPack

}  // namespace cairn
