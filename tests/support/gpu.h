// For tests that need a GPU: they skip themselves if there is none.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "runtime/comm/nccl_backend.h"

namespace cairn {

// The driver is here, and has a device.
inline bool HasGpu() {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return false;
  const auto init = reinterpret_cast<int (*)(unsigned)>(::dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(::dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  return init && count && init(0) == 0 && count(&devices) == 0 && devices > 0;
}

// libtorch looks once whether its CUDA libraries are loaded, and any test may make it look.
class LoadsCudaFirst : public testing::Environment {
  void SetUp() override {
    if (HasGpu()) NcclModule::Load(0);
  }
};
inline testing::Environment* const kLoadsCudaFirst = testing::AddGlobalTestEnvironment(new LoadsCudaFirst);

}  // namespace cairn
