// DeepSpeed's JSON (--deepspeed_config FILE), read as DeepSpeed reads it, into the settings of a training.
//
// The file sets what neither the command line nor the file of --config gave; "auto" leaves a value to them.
// If both have a value, they must agree. Exceptions are the settings that DeepSpeed took only from its file,
// whatever Megatron's flags said: the loss scale and the sizes of buckets. For these the file wins, and the
// log says so. Keys that only tune DeepSpeed's own implementation have no effect, and the log names them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/config/train_config.h"

namespace cairn {

// `given`: names of the flags that have a value already. Errors: InvalidArgument and NotSupported that name
// the file and the key; those of reading the file.
Status ApplyDeepSpeedFile(const std::string& path, const std::vector<std::string_view>& given,
                          TrainConfig& config);

// Gives sizes that the file leaves "auto" the values that transformers would, which follow from the width of
// the model. Call it once the model is known.
void FillAutoSizes(TrainConfig& config);

}  // namespace cairn
