// The part of the CUDA runtime that cuda_snapshot.cc calls, on CPU threads: each stream is a thread that
// processes its queue with random pauses, so that operations not ordered by an event happen in any order.
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
