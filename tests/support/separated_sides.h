// A CPU's memory on two sides (memory_side.h): private mappings, each known by its address, whose protection
// follows who may touch them. A page that is touched from the wrong side raises SIGSEGV.
#pragma once

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

#include "runtime/model/parameters/memory_side.h"

namespace cairn {

class SeparatedSides final : public SideMemory {
 public:
  static SeparatedSides& Instance() {
    static SeparatedSides sides;
    return sides;
  }

  at::Tensor Zeros(Side side, uint64_t elements, at::ScalarType type) override {
    const size_t bytes = std::max<size_t>(1, elements * c10::elementSize(type));
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(data != MAP_FAILED, "out of memory: ", bytes, " bytes");
    const std::lock_guard lock(mutex_);
    mapped_[data] = {side, bytes};
    Protect(data, mapped_[data]);
    return at::from_blob(
        data, {static_cast<int64_t>(elements)}, [](void* at) { Instance().Free(at); },
        at::TensorOptions(at::kCPU).dtype(type));
  }

  void Allow(bool host, bool device) override {
    const std::lock_guard lock(mutex_);
    host_ = host;
    device_ = device;
    for (const auto& [data, mapping] : mapped_) Protect(data, mapping);
  }

  uint64_t BytesOn(Side side) {
    const std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& [data, mapping] : mapped_) bytes += mapping.side == side ? mapping.bytes : 0;
    return bytes;
  }

 private:
  struct Mapping {
    Side side;
    size_t bytes;
  };
  void Protect(void* data, const Mapping& mapping) const {
    const bool open = mapping.side == Side::kHost ? host_ : device_;
    TORCH_CHECK(::mprotect(data, mapping.bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0, "mprotect");
  }
  void Free(void* data) {
    const std::lock_guard lock(mutex_);
    ::munmap(data, mapped_.at(data).bytes);
    mapped_.erase(data);
  }

  std::mutex mutex_;
  std::map<void*, Mapping> mapped_;
  bool host_ = false;
  bool device_ = true;
};

inline void PutSidesApart(bool apart) { SeparateSides(apart ? &SeparatedSides::Instance() : nullptr); }
// Apart while one lives.
struct SidesApart {
  SidesApart() { PutSidesApart(true); }
  ~SidesApart() { PutSidesApart(false); }
};
// Bytes that were given out and are still in use.
inline uint64_t BytesOn(Side side) { return SeparatedSides::Instance().BytesOn(side); }

}  // namespace cairn
