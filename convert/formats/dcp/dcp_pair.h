// A checkpoint of torch.distributed.checkpoint in one directory, or in two: accelerate's save_state, the
// Trainer under FSDP, and NeMo-RL write the weights and the optimizer into a directory each, which are one
// index here.
#pragma once

#include <string>

#include "convert/formats/dcp/dcp_index.h"

namespace cairn {

bool HoldsDcp(FileSystem& fs, const std::string& path);

// Errors: those of ReadDcpIndex; NotSupported if there are several models.
Result<DcpIndex> ReadDcp(FileSystem& fs, const std::string& path);

}  // namespace cairn
