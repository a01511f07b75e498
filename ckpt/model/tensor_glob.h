// Whether a glob of the command line means a tensor.
#pragma once

#include <string>

#include "ckpt/model/tensor.h"

namespace cairn {

// A glob is held against the display name ("NAME/master") and the bare name, so that it can ask for one role
// or all.
bool FitsGlob(const TensorEntry& tensor, const std::string& glob);

}  // namespace cairn
