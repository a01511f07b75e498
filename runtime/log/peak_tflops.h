// The peak throughput of a GPU: the denominator of the model FLOPs utilization (MFU).
#pragma once

#include <optional>
#include <string>

#include "ckpt/base/dtype.h"

namespace cairn {

// Dense TFLOP/s of the tensor cores for `dtype`, from NVIDIA's data sheets, by the model that the driver
// names: "NVIDIA A100-SXM4-80GB". Nothing for an unknown GPU, and for fp32, whose peak depends on whether
// TF32 is allowed.
std::optional<double> PeakTflops(const std::string& gpu_model, Dtype dtype);

// The model of this node's first GPU, as the driver reports it in `directory`; empty if there is no GPU.
std::string GpuModel(const std::string& directory = "/proc/driver/nvidia/gpus");

}  // namespace cairn
