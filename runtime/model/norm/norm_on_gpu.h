// Loads libcairn_norm.so from the directory of the program; its kernels run on libtorch's stream.
#pragma once

#include <c10/core/Device.h>

#include "runtime/model/norm/norm_module.h"

namespace cairn {

// Null if the module is not built or does not load; it is looked for once.
const NormModule* NormModuleOfGpu();

// libtorch's current cudaStream_t.
void* CurrentStreamOf(c10::Device device);

}  // namespace cairn
