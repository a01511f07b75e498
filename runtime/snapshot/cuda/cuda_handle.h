// CUDA streams, events and memory that free themselves, and CUDA's errors as Status.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string_view>
#include <type_traits>

#include "ckpt/base/status.h"

namespace cairn {

// `call` is the source text of the call; messages name it.
inline Status CudaStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return OkStatus();
  const std::string_view name = call.substr(0, call.find('('));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return NoSpace("{}: {}", name, cudaGetErrorString(error));
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
      return NotSupported("{}: {}; see nvidia-smi", name, cudaGetErrorString(error));
    default:
      return IoError("{}: {} ({})", name, cudaGetErrorString(error), cudaGetErrorName(error));
  }
}

#define CAIRN_RETURN_IF_CUDA_ERROR(call) CAIRN_RETURN_IF_ERROR(::cairn::CudaStatus((call), #call))

// Owns a handle that `free` releases. A failure to release it is not reported.
template <auto free>
struct CudaDeleter {
  template <typename T>
  void operator()(T* handle) const {
    (void)free(handle);
  }
};

using CudaStream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, CudaDeleter<cudaStreamDestroy>>;
using CudaEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, CudaDeleter<cudaEventDestroy>>;
template <typename T>
using DeviceMemory = std::unique_ptr<T, CudaDeleter<cudaFree>>;
template <typename T>
using PinnedMemory = std::unique_ptr<T, CudaDeleter<cudaFreeHost>>;
using Registration = std::unique_ptr<std::byte, CudaDeleter<cudaHostUnregister>>;

// A separate stream: the legacy default stream does not wait for it, nor it for that one.
inline Status MakeStream(int priority, CudaStream& out) {
  cudaStream_t stream = nullptr;
  CAIRN_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority));
  out.reset(stream);
  return OkStatus();
}

// A thread that waits for it sleeps.
inline Status MakeEvent(CudaEvent& out) {
  cudaEvent_t event = nullptr;
  CAIRN_RETURN_IF_CUDA_ERROR(
      cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
  out.reset(event);
  return OkStatus();
}

template <typename T>
Status MakeDeviceMemory(uint64_t count, DeviceMemory<T>& out) {
  void* memory = nullptr;
  CAIRN_RETURN_IF_CUDA_ERROR(cudaMalloc(&memory, count * sizeof(T)));
  out.reset(static_cast<T*>(memory));
  return OkStatus();
}

template <typename T>
Status MakePinnedMemory(uint64_t count, PinnedMemory<T>& out) {
  void* memory = nullptr;
  CAIRN_RETURN_IF_CUDA_ERROR(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocDefault));
  out.reset(static_cast<T*>(memory));
  return OkStatus();
}

}  // namespace cairn
