#include "runtime/model/norm/norm_on_gpu.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "ckpt/base/module_path.h"

namespace cairn {
namespace {

constexpr const char* kNormModule = "libcairn_norm.so";

// The module stays loaded, as the CUDA driver does.
const NormModule* LoadNormModule() {
  const std::string path = ModulePath(kNormModule);
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (module == nullptr) return nullptr;
  const auto function = reinterpret_cast<NormModuleFunction>(::dlsym(module, kNormModuleFunction));
  TORCH_CHECK(function, path, " belongs to another build; build again");
  return function();
}

}  // namespace

const NormModule* NormModuleOfGpu() {
  static const NormModule* const module = LoadNormModule();
  return module;
}

void* CurrentStreamOf(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace cairn
