// The memory of tensors that stay from step to step: the device's, or the host's (ZeRO-Offload: Ren et al.
// 2021).
//
// Host memory is pinned if the device is a GPU. On a CPU both are the same memory, and moving state to the
// host changes nothing; a test makes them two (SeparateSides), so that what a GPU would do runs on a CPU.
#pragma once

#include <ATen/Tensor.h>

#include <cstdint>

namespace cairn {

enum class Side { kDevice, kHost };

// Zeros of one dimension, on `device` or in the memory of its host.
at::Tensor ZerosOn(Side side, at::Device device, uint64_t elements, at::ScalarType type);

// Host memory for a copy of `x`, not initialised.
at::Tensor HostMemoryLike(const at::Tensor& x);

// True if `device` has two sides: moving state from one to the other copies it.
bool SidesDiffer(at::Device device);

// While one lives, this program may touch these sides; otherwise, only the device's. Does nothing outside of
// tests. Not to be nested; one thread.
class Touches {
 public:
  explicit Touches(Side only) : Touches(only == Side::kHost, only == Side::kDevice) {}
  static Touches Both() { return {true, true}; }
  ~Touches();
  Touches(const Touches&) = delete;
  Touches& operator=(const Touches&) = delete;

 private:
  Touches(bool host, bool device);
};

// For tests: allocates the memory of both sides, and controls access to it.
class SideMemory {
 public:
  virtual ~SideMemory() = default;
  virtual at::Tensor Zeros(Side side, uint64_t elements, at::ScalarType type) = 0;
  virtual void Allow(bool host, bool device) = 0;
};
// From now on memory of ZerosOn for a CPU comes from `memory`; null: it is one again.
void SeparateSides(SideMemory* memory);

}  // namespace cairn
