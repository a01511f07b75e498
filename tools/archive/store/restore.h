// Gets a step back from a store: the same files, the same bytes.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "tools/archive/store/verify.h"
#include "tools/archive/tar/tar_file_system.h"

namespace cairn {

// Where a user's destination is: "a/b/" and "./a/b" are "a/b".
std::filesystem::path DestinationPath(const std::string& destination);

// A member seen as a directory, read in place; by its sidecar if it has one. Errors: Corrupt.
Result<std::unique_ptr<TarFileSystem>> OpenMember(const MemberRef& member);

struct RestoreOptions {
  // For a tree: whether its entries get their owners and groups back, by number; only root can.
  bool same_owner = ::geteuid() == 0;
};

// Extracts a member as the step directory `destination`, or as that tree. Nothing but what its record tells
// of is created, in a directory beside it that takes the name only once every byte was verified, on its way
// and again on the disk. A tree gets its modes, times, links and empty directories back; files that are zeros
// over whole pages have holes there. Errors: AlreadyExists; Corrupt (a tar that is not an archived step,
// damaged, or another than its record tells of); NoSpace, IoError. Any of them leaves nothing behind.
Status RestoreTar(const MemberRef& member, const std::string& destination, const ByteProgress& progress,
                  const RestoreOptions& options = {});

}  // namespace cairn
