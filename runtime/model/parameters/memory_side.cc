#include "runtime/model/parameters/memory_side.h"

#include <ATen/ATen.h>

#include <atomic>

namespace cairn {
namespace {

std::atomic<SideMemory*> apart = nullptr;

void Allow(bool host, bool device) {
  if (SideMemory* const memory = apart) memory->Allow(host, device);
}

}  // namespace

bool SidesDiffer(at::Device device) { return device.is_cuda() || apart != nullptr; }

at::Tensor ZerosOn(Side side, at::Device device, uint64_t elements, at::ScalarType type) {
  if (SideMemory* const memory = apart; memory != nullptr && device.is_cpu())
    return memory->Zeros(side, elements, type);
  const auto options = at::TensorOptions(side == Side::kHost ? at::kCPU : device).dtype(type);
  return at::zeros({static_cast<int64_t>(elements)},
                   options.pinned_memory(side == Side::kHost && device.is_cuda()));
}

at::Tensor HostMemoryLike(const at::Tensor& x) {
  if (SideMemory* const memory = apart; memory != nullptr && x.is_cpu())
    return memory->Zeros(Side::kHost, static_cast<uint64_t>(x.numel()), x.scalar_type()).view(x.sizes());
  return at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(x.is_cuda()));
}

Touches::Touches(bool host, bool device) { Allow(host, device); }
Touches::~Touches() { Allow(false, true); }

void SeparateSides(SideMemory* memory) { apart = memory; }

}  // namespace cairn
