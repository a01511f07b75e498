#include "runtime/snapshot/cuda/snapshot_kernels.h"

namespace cairn {
namespace {

// Blocks of a warp with few registers find room beside the blocks of a matrix product that holds a whole
// multiprocessor for a millisecond; larger ones wait for its end, and make the next one wait.
constexpr int kThreads = 32;
#define CAIRN_32_REGISTERS __launch_bounds__(1024, 2)

unsigned BlocksFor(uint64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

__global__ void CAIRN_32_REGISTERS PackKernel(SlotView slot) {
  __shared__ uint64_t secret[xxh3::kSecretWords];
  if (threadIdx.x < xxh3::kSecretWords) secret[threadIdx.x] = xxh3::DefaultSecret(threadIdx.x);
  __syncthreads();
  const uint64_t thread = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (thread < slot.pack_threads()) PackThread(slot, thread, secret);
}

__global__ void CAIRN_32_REGISTERS ChainKernel(SlotView slot) {
  __shared__ uint64_t accumulators[kThreads];
  const uint64_t thread = uint64_t{blockIdx.x} * kThreads + threadIdx.x, chunk = thread / xxh3::kLanes;
  const int lane = threadIdx.x % xxh3::kLanes;
  const bool mine = thread < slot.chain_threads() && slot.chunks[chunk].bytes > xxh3::kShortBytes;
  if (mine) accumulators[threadIdx.x] = ChainLane(slot, chunk, lane);
  __syncthreads();
  if (mine && lane < 2) FinishHalf(slot, chunk, lane, accumulators + threadIdx.x - lane);
}

}  // namespace

cudaError_t LaunchPack(const SlotView& slot, cudaStream_t stream) {
  PackKernel<<<BlocksFor(slot.pack_threads()), kThreads, 0, stream>>>(slot);
  return cudaGetLastError();
}

cudaError_t LaunchChain(const SlotView& slot, cudaStream_t stream) {
  ChainKernel<<<BlocksFor(slot.chain_threads()), kThreads, 0, stream>>>(slot);
  return cudaGetLastError();
}

}  // namespace cairn
