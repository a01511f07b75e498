// As much of the CUDA runtime as cuda_snapshot.cc calls, on threads of the CPU: each stream is a thread that
// works off its queue with random pauses, so that what is not ordered by an event happens in any order.
// Kernels run as their CPU twins. Linked in place of libcudart and snapshot_kernels.cu.
#pragma once

#include <cstdint>

namespace cairn::fake_cuda {

// The `call`-th call from now on (from 1) fails with cudaErrorUnknown and does nothing; 0: none. Freeing
// never fails.
void FailCall(int64_t call);
// Calls since the last FailCall().
int64_t Calls();

}  // namespace cairn::fake_cuda
