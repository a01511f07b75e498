// common.pt, the part of a distributed checkpoint of Megatron-Core that all ranks share: arguments, progress,
// the optimizer's hyper-parameters, the schedule, and how a loader asks for the content.
#pragma once

#include "convert/formats/megatron/megatron_core.h"

namespace cairn {

// Emits the file's dict into the zip.
void EmitTorchDistCommon(CorePlan& plan, uint32_t zip);

}  // namespace cairn
