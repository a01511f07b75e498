// A lock on a file (flock): one holder that writes, or several that share. It ends with the process, however
// that ends. FileSystem::OpenLock makes it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "ckpt/base/status.h"
#include "ckpt/base/unique_fd.h"

namespace cairn {

class FileLock {
 public:
  enum class How { kShared, kExclusive };
  enum class Missing { kCreate, kError };  // a file that does not exist

  // If `fd` is empty, every lock is granted, and the file has no text.
  FileLock(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  // Takes the lock, or changes how it is held. False: another process holds it; then this one holds nothing.
  // Errors: IoError.
  Result<bool> TryLock(How how);
  // The same, but waits.
  Status Lock(How how);

  // The text of the file, which its holder writes. NFS shows another host's text to a file opened after it.
  Result<std::string> ReadText(size_t max_bytes) const;
  // In place and synced. A reader without the lock may see a part of it.
  Status WriteText(std::string_view text) const;

  // A flock cannot be queried without trying to take it. After Announce(), IsAnnounced() of others is true
  // until this lock ends.
  void Announce() const;
  bool IsAnnounced() const;

  const UniqueFd& fd() const { return fd_; }
  // False: the file was renamed or removed, or another took its name.
  bool IsAtItsPath() const;
  const std::string& path() const { return path_; }

 private:
  UniqueFd fd_;
  std::string path_;
};

}  // namespace cairn
