// A lock on a file of the real disk (flock): one holder that writes, or several that share. It ends with the
// process, however that ends.
#pragma once

#include <string>
#include <utility>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

class FileLock {
 public:
  enum class How { kShared, kExclusive };
  enum class Missing { kCreate, kError };  // a file that does not exist

  // Opens `path` and locks nothing yet. A link is not followed. Errors: those of open().
  static Result<FileLock> Open(std::string path, Missing missing = Missing::kCreate);

  // Takes the lock, or changes how it is held. False: another process holds it; then this one holds nothing.
  // Errors: IoError.
  Result<bool> TryLock(How how);
  // The same, but waits.
  Status Lock(How how);

  const UniqueFd& fd() const { return fd_; }
  // False: the file was renamed or removed, or another took its name.
  bool IsAtItsPath() const;
  const std::string& path() const { return path_; }

 private:
  FileLock(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
};

}  // namespace cairn
