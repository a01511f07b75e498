#include "runtime/log/peak_tflops.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

TEST(PeakTflopsTest, UsesTheModelThatTheDriverNames) {
  EXPECT_EQ(PeakTflops("NVIDIA A100-SXM4-80GB", Dtype::kBF16), 312);
  EXPECT_EQ(PeakTflops("NVIDIA H100 80GB HBM3", Dtype::kF16), 989);
  EXPECT_EQ(PeakTflops("NVIDIA H100 PCIe", Dtype::kBF16), 756);
  EXPECT_EQ(PeakTflops("Tesla V100-SXM2-32GB", Dtype::kF16), 125);
  EXPECT_EQ(PeakTflops("Tesla V100-SXM2-32GB", Dtype::kBF16), std::nullopt);  // it has no bf16
  EXPECT_EQ(PeakTflops("NVIDIA A100-SXM4-80GB", Dtype::kF32), std::nullopt);
  EXPECT_EQ(PeakTflops("NVIDIA T400", Dtype::kF16), std::nullopt);
  EXPECT_EQ(PeakTflops("", Dtype::kF16), std::nullopt);
}

TEST(PeakTflopsTest, ReadsTheDriversFiles) {
  TempDir dir;
  EXPECT_EQ(GpuModel(dir / "missing"), "");
  std::filesystem::create_directories(dir / "gpus/0000:07:00.0");
  std::ofstream(dir / "gpus/0000:07:00.0/information")
      << "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 1\nGPU UUID: \t GPU-1\n";
  EXPECT_EQ(GpuModel(dir / "gpus"), "NVIDIA A100-SXM4-80GB");
}

}  // namespace
}  // namespace cairn
