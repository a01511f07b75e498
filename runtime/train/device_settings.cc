#include "runtime/train/device_settings.h"

#include <ATen/Context.h>
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
  // cuBLAS promises it for a workspace of fixed size alone; libtorch insists that the user has chosen one.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(
      false);  // everything is written before it is read
}

}  // namespace cairn
