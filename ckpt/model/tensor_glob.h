// Matching tensors with the globs of the command line.
#pragma once

#include <string>

#include "ckpt/model/tensor.h"

namespace cairn {

// A glob matches the display name ("NAME/master") or the bare name, so it can select one role or all.
bool FitsGlob(const TensorEntry& tensor, const std::string& glob);

}  // namespace cairn
