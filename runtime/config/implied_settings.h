// Settings that follow from other settings, once the command line, --config and DeepSpeed's JSON are all
// read.
#pragma once

#include "runtime/config/train_config.h"

namespace cairn {

// Lengths in tokens become samples, older flags set the settings that they stood for, and defaults of
// DeepSpeed are applied. Adds notes to config.notes on effects that a user may not expect.
void ApplyImpliedSettings(TrainConfig& config);

}  // namespace cairn
