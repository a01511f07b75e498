// The flags with which a program cuts a model as a plan says.
#pragma once

#include <string>
#include <vector>

#include "ckpt/model/shape.h"
#include "tools/plan/run_setup.h"

namespace cairn {

// The flags of setup.program for TP, PP and its stages, the batch, ZeRO and recomputation, each with its
// value. Of Megatron-LM those of 2024 and later (megatron-core 0.10); of Megatron-DeepSpeed BigScience's.
// Requires StagesAreWhole.
std::vector<std::string> LaunchFlags(const ModelShape& shape, const RunSetup& setup);

}  // namespace cairn
