#include "runtime/model/parameters/memory_side.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/separated_sides.h"

namespace cairn {
namespace {

class MemorySideTest : public testing::Test {
 protected:
  SidesApart apart_;
};

TEST_F(MemorySideTest, BytesAreCountedWhileTheyAreInUse) {
  const at::Tensor device = ZerosOn(Side::kDevice, at::kCPU, 100, at::kFloat);
  {
    const at::Tensor host = ZerosOn(Side::kHost, at::kCPU, 1000, at::kBFloat16);
    const at::Tensor slice = host.narrow(0, 10, 20);
    EXPECT_EQ(BytesOn(Side::kHost), 2000);
  }
  EXPECT_EQ(BytesOn(Side::kHost), 0);
  EXPECT_EQ(BytesOn(Side::kDevice), 400);
}

TEST_F(MemorySideTest, CopiesBetweenBothSides) {
  const at::Tensor device = ZerosOn(Side::kDevice, at::kCPU, 4, at::kFloat);
  const at::Tensor host = ZerosOn(Side::kHost, at::kCPU, 4, at::kFloat);
  {
    const Touches host_alone(Side::kHost);
    host.fill_(3);
  }
  {
    const Touches both = Touches::Both();
    device.copy_(host);
  }
  EXPECT_EQ(device.sum().item<float>(), 12);
}

TEST_F(MemorySideTest, ATouchFromTheWrongSideEndsTheProgram) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const at::Tensor device = ZerosOn(Side::kDevice, at::kCPU, 4, at::kFloat);
  const at::Tensor host = ZerosOn(Side::kHost, at::kCPU, 4, at::kFloat);
  EXPECT_DEATH(host.fill_(1), "");
  EXPECT_DEATH(
      {
        const Touches host_alone(Side::kHost);
        device.fill_(1);
      },
      "");
}

TEST(MemorySidesOfACpuTest, AreOneOutsideOfTests) {
  EXPECT_FALSE(SidesDiffer(at::kCPU));
  ZerosOn(Side::kHost, at::kCPU, 4, at::kFloat).fill_(1);
}

}  // namespace
}  // namespace cairn
