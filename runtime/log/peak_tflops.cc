#include "runtime/log/peak_tflops.h"

#include <filesystem>
#include <fstream>
#include <string_view>

namespace cairn {
namespace {

struct GpuPeak {
  std::string_view word;  // of the model
  double tflops;          // fp16, and bf16 but for Volta
};
// The first that fits counts: the longer name before the shorter.
constexpr GpuPeak kGpuPeaks[] = {
    {"H100 PCIe", 756}, {"H100 NVL", 835}, {"H100", 989}, {"H200", 989}, {"H800", 989},
    {"GH200", 989},     {"B200", 2250},    {"A100", 312}, {"A800", 312}, {"A30", 165},
    {"A40", 149.7},     {"L40S", 362},     {"V100", 125},
};

}  // namespace

std::optional<double> PeakTflops(const std::string& gpu_model, Dtype dtype) {
  if (dtype == Dtype::kF32) return std::nullopt;
  for (const GpuPeak& peak : kGpuPeaks) {
    if (gpu_model.find(peak.word) == std::string::npos) continue;
    return peak.word == "V100" && dtype == Dtype::kBF16 ? std::nullopt : std::optional(peak.tflops);
  }
  return std::nullopt;
}

std::string GpuModel(const std::string& directory) {
  constexpr std::string_view kModelLine = "Model:";
  std::error_code none;
  for (const auto& gpu : std::filesystem::directory_iterator(directory, none)) {
    std::ifstream information(gpu.path() / "information");
    for (std::string line; std::getline(information, line);) {
      const size_t name = line.find_first_not_of(" \t", kModelLine.size());
      if (line.starts_with(kModelLine) && name != line.npos) return line.substr(name);
    }
  }
  return "";
}

}  // namespace cairn
