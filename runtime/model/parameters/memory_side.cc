// Separated sides are private mappings, each known by its address, whose protection follows who may touch
// them. A page that is touched from the wrong side raises SIGSEGV.
#include "runtime/model/parameters/memory_side.h"

#include <sys/mman.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

namespace cairn {
namespace {

using at::Tensor;

class Mappings {
 public:
  static Mappings& Instance() {
    static Mappings mappings;
    return mappings;
  }

  Tensor Zeros(Side side, uint64_t elements, at::ScalarType type) {
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

  void Allow(bool host, bool device) {
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

  std::atomic<bool> separate = false;

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

}  // namespace

bool SidesDiffer(at::Device device) { return device.is_cuda() || Mappings::Instance().separate; }

Tensor ZerosOn(Side side, at::Device device, uint64_t elements, at::ScalarType type) {
  if (device.is_cpu() && Mappings::Instance().separate)
    return Mappings::Instance().Zeros(side, elements, type);
  const auto options = at::TensorOptions(side == Side::kHost ? at::kCPU : device).dtype(type);
  return at::zeros({static_cast<int64_t>(elements)},
                   options.pinned_memory(side == Side::kHost && device.is_cuda()));
}

Touches::Touches(bool host, bool device) {
  if (Mappings::Instance().separate) Mappings::Instance().Allow(host, device);
}

Touches::~Touches() {
  if (Mappings::Instance().separate) Mappings::Instance().Allow(false, true);
}

void SeparateSides(bool separate) { Mappings::Instance().separate = separate; }

uint64_t BytesOn(Side side) { return Mappings::Instance().BytesOn(side); }

}  // namespace cairn
