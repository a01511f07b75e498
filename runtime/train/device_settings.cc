#include "runtime/train/device_settings.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "runtime/control/launchers.h"

namespace cairn {
namespace {

int DefaultThreads() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t allowed;
  const int mine = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : cores;
  if (mine < cores) return mine;  // the launcher has bound each rank to its share already
  return std::max(1, cores / RanksOnThisHost());
}

}  // namespace

void SetThreads(int threads) { at::set_num_threads(threads > 0 ? threads : DefaultThreads()); }

void KeepFreedMemory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

void UseDeterministicKernels() {
  // cuBLAS guarantees it only for a workspace of fixed size; libtorch insists that the user has chosen one.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(
      false);  // everything is written before it is read
}

void CopyBetweenSides(void* to, const void* from, size_t bytes, bool to_device) {
  const auto view = [&](const void* data, bool on_device) {
    return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(bytes)},
                         at::TensorOptions(on_device ? at::kCUDA : at::kCPU).dtype(at::kByte));
  };
  view(to, to_device).copy_(view(from, !to_device));
}

}  // namespace cairn
