// A host that caches missing names for ever. A client of NFS notices new ones by listing their directory; the
// kernel of a FUSE client does not even then.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "tests/support/unsynced_file_system.h"

namespace cairn {

// For one thread.
class StaleNames final : public UnsyncedFileSystem {
 public:
  explicit StaleNames(bool listing_helps = true) : listing_helps_(listing_helps) {}

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    for (std::string path = call.path; path != "/" && path != "."; path = ParentDir(path))
      if (missing_.contains(path) && !call.changes()) return NotFound("{}: not there, as remembered", path);
    const Status status = UnsyncedFileSystem::Do(call, run);
    if (status.ok() && call.changes()) missing_.erase(call.to != nullptr ? *call.to : call.path);
    if (status.kind() == StatusKind::kNotFound) missing_.insert(FirstMissing(call.path));
    if (status.ok() && call.kind == FsCall::Kind::kList && listing_helps_)
      std::erase_if(missing_, [&](const std::string& path) {
        return ParentDir(path) == call.path && FileSystem::Posix().LinkStat(path).ok();
      });
    return status;
  }

 private:
  static std::string FirstMissing(std::string path) {
    while (!FileSystem::Posix().LinkStat(ParentDir(path)).ok()) path = ParentDir(path);
    return path;
  }

  const bool listing_helps_;
  std::set<std::string> missing_;
};

}  // namespace cairn
