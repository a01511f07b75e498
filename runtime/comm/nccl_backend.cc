#include "runtime/comm/nccl_backend.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "ckpt/base/module_path.h"

namespace cairn {
namespace {

constexpr const char* kNcclModule = "libcairn_nccl.so";

template <typename Function>
Function Symbol(void* module, const char* name) {
  void* symbol = dlsym(module, name);
  TORCH_CHECK(symbol, kNcclModule, " has no ", name, "; it belongs to another build: rebuild both");
  return reinterpret_cast<Function>(symbol);
}

}  // namespace

// The module stays loaded, because its registrations in libtorch cannot be undone.
std::unique_ptr<NcclModule> NcclModule::Load(int local_rank) {
  const std::string path = ModulePath(kNcclModule);
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  TORCH_CHECK(module, "device cuda: cannot load ", path, " (", dlerror(),
              "); build the target cairn_nccl with a CUDA build of torch, or train with --device cpu");
  auto nccl = std::make_unique<NcclModule>();
  nccl->new_backend_ = Symbol<NewBackendFunction>(module, "CairnNewNcclBackend");
  nccl->device_ = Symbol<int (*)(int)>(module, "CairnSelectDevice")(local_rank);
  nccl->uuid_.resize(16);
  Symbol<void (*)(int, char*)>(module, "CairnGpuUuid")(nccl->device_, nccl->uuid_.data());
  return nccl;
}

c10::intrusive_ptr<c10d::Backend> NcclModule::NewBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                         const std::string& prefix, int rank, int size,
                                                         double timeout_seconds) const {
  return c10::intrusive_ptr<c10d::Backend>::reclaim(
      new_backend_(store.get(), prefix.c_str(), rank, size, device_, timeout_seconds));
}

}  // namespace cairn
