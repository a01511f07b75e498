// Megatron-Core's torch_dist: torch.distributed.checkpoint under Megatron's names, layers stacked.
//
// Source: megatron/core/dist_checkpointing of 0.4 to 0.19.2.
#pragma once

#include "convert/foreign/open_options.h"

namespace cairn {

// True if the directory's metadata.json names a backend other than cairn's.
bool IsMegatronDist(FileSystem& fs, const std::string& directory);

// True if it says that cairn.megatron saved there (python/cairn/megatron.py): the directory is a run of
// Cairn, too, and its one step holds the tensors.
bool IsSavedByCairnMegatron(FileSystem& fs, const std::string& directory);

Result<std::unique_ptr<ForeignSource>> OpenMegatronDist(FileSystem& fs, const std::string& directory,
                                                        ReaderOptions& options);

// Checks that Megatron-Core's top level, if common.pt is among `names` of files in `directory` or .metadata
// lists it, has the metadata.json, without which Megatron ignores it.
Status CheckMegatronFiles(FileSystem& fs, const std::string& directory,
                          const std::vector<std::string>& names);

}  // namespace cairn
