// Loads libcairn_nccl.so, the only part that links CUDA, and makes NCCL backends with it.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace cairn {

class NcclModule {
 public:
  // Looks in the directory of the program. Selects device `local_rank` modulo the number of devices.
  // Errors: c10::Error when the module is missing or does not load, or there is no usable GPU.
  static std::unique_ptr<NcclModule> Load(int local_rank);

  int device() const { return device_; }
  const std::string& uuid() const { return uuid_; }  // of the device, 16 bytes

  // ProcessGroupNCCL for a group. `prefix` names the group among all that ever use the store.
  c10::intrusive_ptr<c10d::Backend> NewBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                               const std::string& prefix, int rank, int size,
                                               double timeout_seconds) const;

 private:
  using NewBackendFunction = c10d::Backend* (*)(c10d::Store*, const char*, int, int, int, double);
  NewBackendFunction new_backend_ = nullptr;
  int device_ = 0;
  std::string uuid_;
};

}  // namespace cairn
