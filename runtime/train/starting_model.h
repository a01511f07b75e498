// The model of a training that starts from a checkpoint: the checkpoint's, unless a flag says otherwise.
#pragma once

#include "runtime/config/train_config.h"
#include "runtime/control/control_plane.h"

namespace cairn {

// Collective, before the configuration is validated: rank 0 reads the model of --save or --load, and all
// ranks take it (checkpoint_model.h). If there is no step, or one that does not describe its model, the flags
// stay as they are. Errors: those of checkpoint_model.h, the same on all ranks.
Status TakeStartingModel(ParsedCommandLine& command_line, ControlPlane& control);

}  // namespace cairn
