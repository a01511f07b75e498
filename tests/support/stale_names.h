// A host that caches missing names for ever, and notices new ones only by listing their
// directory, as clients of network file systems do.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "tests/support/unsynced_file_system.h"

namespace cairn {

// For one thread.
class StaleNames final : public UnsyncedFileSystem {
 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    for (std::string path = call.path; path != "/" && path != "."; path = ParentDir(path))
      if (missing_.contains(path) && !call.changes()) return NotFound("{}: not there, as remembered", path);
    const Status status = UnsyncedFileSystem::Do(call, run);
    if (status.ok() && call.changes()) missing_.erase(call.to != nullptr ? *call.to : call.path);
    if (status.kind() == StatusKind::kNotFound) missing_.insert(FirstMissing(call.path));
    if (status.ok() && call.kind == FsCall::Kind::kList)
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

  std::set<std::string> missing_;
};

}  // namespace cairn
