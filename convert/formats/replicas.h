// Copies of a tensor that several ranks stored: equal, or one of them, or their mean.
#pragma once

#include <memory>
#include <vector>

#include "convert/formats/formats.h"
#include "convert/formats/megatron_model.h"
#include "convert/stored_source.h"

namespace cairn {

// Compares each replica with what is read in its stead. Opens the catalog; where replicas differ, does what
// `how` says and names them with their distance in the manifest's history.
// Errors: Corrupt naming every tensor that differs, its files and the distance, where how is kStrict; those
// of StoredSource.
Result<std::unique_ptr<CheckpointSource>> OpenWithReplicas(FileSystem& fs, const std::string& directory,
                                                           Manifest manifest, StoredCatalog catalog,
                                                           const std::vector<MegatronReplica>& replicas,
                                                           Replicas how);

}  // namespace cairn
