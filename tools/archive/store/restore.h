// Restores a step or a tree from a store: the same files, the same bytes.
#pragma once

#include <unistd.h>

#include <string>

#include "tools/archive/store/verify.h"
#include "tools/archive/tar/tar_file_system.h"

namespace cairn {

// A user's destination: "a/b/" and "./a/b" are "a/b".
std::string DestinationPath(const std::string& destination);
// The destination of a step must be new, and its name must not claim another step. Leftovers of killed
// commands are removed. Errors: AlreadyExists, InvalidArgument.
Status CheckDestination(FileSystem& fs, const std::string& destination, int64_t step);
// True for RUN/step-N: it is made under the lock of its run.
bool IsInRun(const std::string& destination);
// A failure to make a step because a training writes into its run says what to do.
Status AskForAnotherPlace(const Status& failed, const std::string& destination);

// A member seen as a directory, read in place; by its sidecar if it has one. Errors: Corrupt.
Result<std::unique_ptr<TarFileSystem>> OpenMember(const MemberRef& member);

// Extracts a member as the step directory or tree `destination`. Only the entries of its record are created,
// in a temporary directory that is renamed once every byte was verified, on its way and again on the disk. A
// tree gets its modes, times, links and empty directories back, with `same_owner` also owners and groups, by
// number, which only root can; whole pages of zeros become holes. Errors:
// AlreadyExists; Corrupt (the tar is not an archived step, is damaged, or contradicts its record); NoSpace,
// IoError. After an error nothing is left.
Status RestoreTar(const MemberRef& member, const std::string& destination, const ByteProgress& progress,
                  bool same_owner = ::geteuid() == 0);

}  // namespace cairn
