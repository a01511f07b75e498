#include "runtime/snapshot/device_snapshot.h"

#include <dlfcn.h>

#include "ckpt/base/module_path.h"

namespace cairn {
namespace {

constexpr const char* kCudaModule = "libcairn_cuda.so";

}  // namespace

// The module stays loaded, as the CUDA driver does.
Result<std::unique_ptr<DeviceSnapshot>> NewCudaSnapshot(const CudaSnapshotOptions& options) {
  const std::string path = ModulePath(kCudaModule);
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr)
    return NotSupported("device cuda: cannot load {} ({}); build the target cairn_cuda on a host with nvcc",
                        path, ::dlerror());
  using Maker = void (*)(const CudaSnapshotOptions&, Status*, DeviceSnapshot**);
  const auto make = reinterpret_cast<Maker>(::dlsym(module, "CairnNewCudaSnapshot"));
  if (make == nullptr) return NotSupported("{} belongs to another build; rebuild both", path);
  Status status;
  DeviceSnapshot* snapshot = nullptr;
  make(options, &status, &snapshot);
  if (!status.ok()) return status;
  return std::unique_ptr<DeviceSnapshot>(snapshot);
}

}  // namespace cairn
