// Which tensors one HDF5 file can hold together. FORMAT.md, "Index".
#pragma once

#include <span>

#include "ckpt/base/status.h"
#include "ckpt/model/tensor.h"

namespace cairn {

// A name with slashes makes groups, so "a" and "a/b" exclude each other, and "a//b" is "a/b". Errors:
// InvalidArgument naming the tensors, also for a name of more than 65,535 bytes.
Status CheckPaths(std::span<const TensorEntry> tensors);

}  // namespace cairn
