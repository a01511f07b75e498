// The interface of libcairn_norm.so: norm_core.h on a GPU, callable from code that nvcc does not compile.
#pragma once

#include <tuple>

#include "runtime/model/norm/norm_core.h"

namespace cairn {

// They return once the kernel is enqueued on `stream`, a cudaStream_t of `device`, where all pointers point.
// The result is null, or CUDA's error in words.
template <typename T>
struct NormLaunches {
  const char* (*forward)(const NormForward<T>& norm, int64_t rows, int device, void* stream);
  // `sums`: those of the first group of rows; the others follow one after another.
  const char* (*backward)(const NormBackward<T>& norm, int64_t rows, int64_t rows_per_group,
                          NormWeightGrads sums, int device, void* stream);
};

using NormModule = std::tuple<NormLaunches<float>, NormLaunches<Bf16>, NormLaunches<Fp16>>;

using NormModuleFunction = const NormModule* (*)();
inline constexpr const char* kNormModuleFunction = "CairnNormModule";

}  // namespace cairn
