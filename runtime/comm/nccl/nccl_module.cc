// libcairn_nccl.so: the code that needs CUDA and NCCL, kept apart so that CPU ranks load neither. See
// nccl_backend.h.
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace {
// ProcessGroupNCCL has a watchdog too. Ours knows steps and tensors, so it reports first.
constexpr double kOwnWatchdogSeconds = 60;
}  // namespace

// Makes device `local_rank` modulo the number of devices the current one, and returns it.
extern "C" int CairnSelectDevice(int local_rank) {
  const int devices = c10::cuda::device_count();
  TORCH_CHECK(devices > 0,
              "device cuda: this host has no usable NVIDIA GPU (no device or no driver that fits, see "
              "nvidia-smi, and "
              "CUDA_VISIBLE_DEVICES); train with --device cpu");
  const auto device = static_cast<c10::DeviceIndex>(local_rank % devices);
  c10::cuda::set_device(device);
  return device;
}

// Identifies a GPU among those of all hosts: 16 bytes.
extern "C" void CairnGpuUuid(int device, char* uuid) {
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  TORCH_CHECK(error == cudaSuccess, "device cuda:", device, ": ", cudaGetErrorString(error));
  std::memcpy(uuid, &properties.uuid, sizeof(properties.uuid));
}

// A backend that the caller owns.
extern "C" c10d::Backend* CairnNewNcclBackend(c10d::Store* store, const char* prefix, int rank, int size,
                                              int device, double timeout_seconds) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout =
      std::chrono::milliseconds(static_cast<int64_t>((timeout_seconds + kOwnWatchdogSeconds) * 1000));
  options->group_name = prefix;
  auto shared = c10::intrusive_ptr<c10d::Store>::unsafe_reclaim_from_nonowning(store);
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(prefix, shared);
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(prefixed, rank, size, options);
  backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return backend.release();
}
