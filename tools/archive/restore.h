// Gets a step back from a store: the same files, the same bytes.
#pragma once

#include <filesystem>
#include <string>

#include "tools/archive/tar_file_system.h"
#include "tools/archive/verify.h"

namespace cairn {

// Where a user's destination is: "a/b/" and "./a/b" are "a/b".
std::filesystem::path DestinationPath(const std::string& destination);

// A member seen as a directory, read in place; by its sidecar where it has one. Errors: Corrupt.
Result<std::unique_ptr<TarFileSystem>> OpenMember(FileSystem& fs, const std::string& store,
                                                  const std::string& tar);

// Extracts STORE/tar as the step directory `destination`, or as that tree. Nothing but its plain files is
// created, in a directory beside it that takes the name only once every byte was verified, on its way and
// again on the disk. Errors: AlreadyExists; Corrupt (a tar that is no archived step, or damaged); NoSpace,
// IoError. Any of them leaves nothing behind.
Status RestoreTar(FileSystem& fs, const std::string& store, const std::string& tar,
                  const std::string& destination, const ByteProgress& progress);

}  // namespace cairn
