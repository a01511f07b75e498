// Safetensors that torch.distributed.checkpoint's HuggingFaceStorageWriter wrote, one or more of each rank
// (shard-00002-model-00001-of-00001.safetensors), as an index: each tensor of a file is a slice of one, and
// DCP_SHARDING_INFO in the header says where it begins.
//
// Nothing in the files says how many ranks there were, or what shape a tensor has as a whole: the last rank's
// file may be missing without a trace. Hence a config.json of a known family must name the sizes, or
// --allow ranks says that none is missing. Source: torch 2.11, distributed/checkpoint/hf_storage.py.
#pragma once

#include "convert/formats/dcp/dcp_index.h"

namespace cairn {

bool HoldsDcpSlices(const std::vector<std::string>& names);

// Errors: NotFound naming the first missing file of those that numbers tell; Corrupt naming a tensor whose
// slices overlap or leave a hole; NotSupported if nothing tells how many ranks there were, or naming a tensor
// of a type that is not held.
Result<DcpIndex> ReadDcpSlices(FileSystem& fs, const std::string& directory, ReaderOptions& options);

}  // namespace cairn
