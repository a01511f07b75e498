// libcairn_norm.so. Forward, a block of threads norms one row; backward, one group of rows, and adds up their
// gradients of weights in shared memory if they fit.
#include <cuda_runtime.h>

#include <algorithm>

#include "runtime/model/norm/norm_module.h"

namespace cairn {
namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 256;
constexpr size_t kSharedBytes = 46 << 10;  // of 48 KiB that every GPU gives without being asked

// The block as a team (norm_core.h).
class BlockTeam {
 public:
  // `shared`: 2 * kWarp floats.
  __device__ explicit BlockTeam(float* shared) : shared_(shared) {}

  template <typename F>
  __device__ void Visit(int64_t n, F f) const {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f(i);
  }
  template <typename F>
  __device__ float Sum(int64_t n, F f) const {
    return SumTwo(n, [&](int64_t i) { return TwoSums{f(i), 0}; }).first;
  }
  template <typename F>
  __device__ TwoSums SumTwo(int64_t n, F f) const {
    TwoSums sums{0, 0};
    Visit(n, [&](int64_t i) {
      const TwoSums more = f(i);
      sums.first += more.first;
      sums.second += more.second;
    });
    return OfAllThreads(sums);
  }
  __device__ bool leads() const { return threadIdx.x == 0; }

 private:
  // In an order that depends only on the number of threads.
  __device__ TwoSums OfAllThreads(TwoSums sums) const {
    for (int apart = kWarp / 2; apart > 0; apart /= 2) {
      sums.first += __shfl_xor_sync(~0U, sums.first, apart);
      sums.second += __shfl_xor_sync(~0U, sums.second, apart);
    }
    const unsigned warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    __syncthreads();  // the sums before these have been read
    if (threadIdx.x % kWarp == 0) {
      shared_[warp] = sums.first;
      shared_[kWarp + warp] = sums.second;
    }
    __syncthreads();
    TwoSums all{0, 0};
    for (unsigned w = 0; w < warps; ++w) {
      all.first += shared_[w];
      all.second += shared_[kWarp + w];
    }
    return all;
  }

  float* shared_;
};

template <typename T>
__global__ void ForwardKernel(NormForward<T> norm) {
  __shared__ float shared[2 * kWarp];
  NormRow(BlockTeam(shared), norm, blockIdx.x);
}

template <typename T>
__global__ void BackwardKernel(NormBackward<T> norm, int64_t rows, int64_t rows_per_group,
                               NormWeightGrads sums, bool in_shared) {
  __shared__ float shared[2 * kWarp];
  extern __shared__ float group_sums[];
  const BlockTeam team(shared);
  const int64_t group = blockIdx.x, width = norm.width;
  const int64_t floats = sums.weight == nullptr ? 0 : sums.bias == nullptr ? width : 2 * width;
  float* const out = sums.weight + group * floats;
  float* const added = in_shared ? group_sums : out;
  const auto each = [&](auto f) {  // a thread visits the columns that it does in NormGradRow
    for (int64_t at = 0; at < floats; at += width) team.Visit(width, [&](int64_t i) { f(at + i); });
  };
  each([&](int64_t i) { added[i] = 0; });
  const NormWeightGrads own{floats > 0 ? added : nullptr, floats > width ? added + width : nullptr};
  const int64_t begin = group * rows_per_group, end = min(rows, begin + rows_per_group);
  for (int64_t row = begin; row < end; ++row) NormGradRow(team, norm, row, own);
  if (in_shared) each([&](int64_t i) { out[i] = added[i]; });
}

unsigned ThreadsFor(int64_t width) {
  return static_cast<unsigned>(std::clamp<int64_t>((width + kWarp - 1) / kWarp * kWarp, kWarp, kMostThreads));
}

const char* LastError() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <typename T>
const char* LaunchForward(const NormForward<T>& norm, int64_t rows, int device, void* stream) {
  if (rows == 0) return nullptr;
  // This CUDA runtime is the module's own: it need not know what libtorch's has chosen.
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return cudaGetErrorString(error);
  ForwardKernel<<<static_cast<unsigned>(rows), ThreadsFor(norm.width), 0,
                  static_cast<cudaStream_t>(stream)>>>(norm);
  return LastError();
}

template <typename T>
const char* LaunchBackward(const NormBackward<T>& norm, int64_t rows, int64_t rows_per_group,
                           NormWeightGrads sums, int device, void* stream) {
  if (rows == 0) return nullptr;
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) return cudaGetErrorString(error);
  const int64_t groups = (rows + rows_per_group - 1) / rows_per_group;
  const int64_t rows_of_sums = sums.weight == nullptr ? 0 : sums.bias == nullptr ? 1 : 2;
  const size_t bytes = rows_of_sums * norm.width * sizeof(float);
  const bool in_shared = bytes <= kSharedBytes;
  BackwardKernel<<<static_cast<unsigned>(groups), ThreadsFor(norm.width), in_shared ? bytes : 0,
                   static_cast<cudaStream_t>(stream)>>>(norm, rows, rows_per_group, sums, in_shared);
  return LastError();
}

template <typename T>
constexpr NormLaunches<T> kLaunches{LaunchForward<T>, LaunchBackward<T>};

}  // namespace
}  // namespace cairn

extern "C" const cairn::NormModule* CairnNormModule() {
  static const cairn::NormModule module(cairn::kLaunches<float>, cairn::kLaunches<cairn::Bf16>,
                                        cairn::kLaunches<cairn::Fp16>);
  return &module;
}
