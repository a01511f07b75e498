// A directory of torch.distributed.checkpoint: FSDP2, DTensor, or anything else that was saved with
// dcp.save().
//
// Parameters have the names of the model's own state dict; Adam's moments are found by them. How a model is
// cut across its ranks is in the boxes, and nowhere else.
#pragma once

#include "convert/foreign/open_options.h"

namespace cairn {

bool MatchesDcp(FileSystem& fs, const std::string& path);
Result<std::unique_ptr<ForeignSource>> OpenDcp(FileSystem& fs, const std::string& path,
                                               ReaderOptions& options);

}  // namespace cairn
