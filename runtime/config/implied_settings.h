// What settings say about others, once the command line, --config and DeepSpeed's JSON are all read.
#pragma once

#include "runtime/config/train_config.h"

namespace cairn {

// Lengths in tokens become samples, older flags set what they stood for, and what DeepSpeed did by itself is
// done. Adds to config.notes what a caller may not expect. Errors: InvalidArgument.
Status ApplyImpliedSettings(TrainConfig& config);

}  // namespace cairn
