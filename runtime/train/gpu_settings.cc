#include "runtime/train/gpu_settings.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace cairn {

void ComputeAlikeEachTime() {
  // cuBLAS promises it for a workspace of fixed size alone; libtorch insists that the user has chosen one.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(
      false);  // everything is written before it is read
}

}  // namespace cairn
