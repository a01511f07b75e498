// Copies of a tensor that several ranks stored: must be equal, or one of them is taken, or their mean.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "convert/foreign/open_options.h"
#include "convert/foreign/stored_source.h"

namespace cairn {

// A replica that is not the one that is read.
struct StoredReplica {
  uint32_t tensor = 0;  // of the catalog
  uint32_t array = 0;   // another one that should hold the same
  uint32_t first = 0;   // the array that is read
};

// A source that reads each of the arrays as a separate tensor. Errors: those of StoredSource.
Result<std::unique_ptr<StoredSource>> OpenArrays(FileSystem& fs, const std::string& directory,
                                                 const std::vector<std::string>& files,
                                                 std::vector<StoredArray> arrays);
// The largest difference of two tensors of the source; nullopt if their bytes are equal, infinity if they
// cannot be subtracted.
Result<std::optional<double>> Distance(CheckpointSource& source, uint32_t a, uint32_t b);

// Compares each replica with the array that is read instead, and opens the catalog. If replicas differ, does
// what `how` says and names them with their distance in the manifest's history.
// Errors: Corrupt naming every tensor that differs, its files and the distance, if `how` is kStrict; those
// of StoredSource.
Result<std::unique_ptr<ForeignSource>> OpenWithReplicas(FileSystem& fs, const std::string& directory,
                                                        Manifest manifest, StoredCatalog catalog,
                                                        const std::vector<StoredReplica>& replicas,
                                                        Replicas how);

}  // namespace cairn
