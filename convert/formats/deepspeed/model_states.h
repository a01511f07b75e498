// Writes the entries of DeepSpeed's model states that are not tensors: how far the training was, what the
// model is, and how others may merge its parameters.
#pragma once

#include <functional>

#include "convert/formats/deepspeed/zero_writer.h"

namespace cairn {

// Emits entries of the file's dict, which is open: counters, schedule, sizes of the world, and for a GPT its
// arguments and universal_checkpoint_info. `held`: of the rank. `emit_frozen`, if given, emits the value of
// frozen_param_shapes or frozen_param_fragments.
void EmitModelStates(PickleEmitter& pickle, const ZeroJob& job, const LocalModel& model,
                     const Model& described, const std::vector<LocalTensor>& held,
                     const std::function<void(std::string_view key)>& emit_frozen = {});

}  // namespace cairn
