#include "runtime/model/parameters/state_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(StateMemoryTest, NamesThePartAndItsSize) {
  constexpr uint64_t kElements = uint64_t{1} << 50;  // more than there are addresses
  try {
    StateZeros("the gradients", Side::kDevice, at::kCPU, kElements, at::kFloat);
    FAIL() << "the allocation succeeded";
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_NE(text.find("out of memory: the gradients of this rank need 4503599.63 GB"), std::string::npos)
        << text;
    EXPECT_EQ(OutOfMemoryLine(text), std::nullopt);  // as it is
  }
  EXPECT_EQ(StateZeros("the weights", Side::kDevice, at::kCPU, 3, at::kFloat).numel(), 3);
}

TEST(StateMemoryTest, ShortensLibtorchsMessagesToOneLine) {
  const auto cpu = OutOfMemoryLine(
      "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
      "to allocate 2500000000 bytes. Error code 12 (Cannot allocate memory)");
  ASSERT_TRUE(cpu.has_value());
  EXPECT_TRUE(cpu->starts_with("out of memory: activations and buffers need 2.50 GB more; give a smaller"))
      << *cpu;
  const auto gpu = OutOfMemoryLine("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has");
  ASSERT_TRUE(gpu.has_value());
  EXPECT_TRUE(gpu->starts_with("out of memory: activations and buffers need 2.00 GiB more;")) << *gpu;
  EXPECT_EQ(OutOfMemoryLine("[enforce fail at something else]"), std::nullopt);
}

}  // namespace
}  // namespace cairn
