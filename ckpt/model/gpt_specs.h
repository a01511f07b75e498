// The parameters of a decoder as `cairn train` trains it.
//
// The order is that of the flat buffer (placement.h). Query, key and value follow each other, weights before
// biases, and so do gate and up; each group is therefore one fused matrix in memory.
#pragma once

#include <vector>

#include "ckpt/model/canonical_modules.h"

namespace cairn {

std::vector<ParameterSpec> GptSpecs(const ModelShape& shape);

}  // namespace cairn
