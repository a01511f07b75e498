#include "ckpt/io/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "ckpt/base/posix_error.h"

namespace cairn {
namespace {

int Operation(FileLock::How how) { return how == FileLock::How::kShared ? LOCK_SH : LOCK_EX; }

// Before an exclusive lock. NFS turns these into POSIX locks: the shared one would remain if the exclusive
// one is refused, and two waiting processes would wait for each other's shared lock.
void GiveUpShared(const UniqueFd& fd, FileLock::How how) {
  if (how == FileLock::How::kExclusive) (void)::flock(fd.get(), LOCK_UN);
}

}  // namespace

Result<FileLock> FileLock::Open(std::string path, Missing missing) {
  const auto open = [&](int flags) {
    int fd = -1;  // non-blocking: it may be a named pipe
    do fd = ::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    return fd;
  };
  int fd = open(missing == Missing::kCreate ? O_RDWR | O_CREAT : O_RDWR);
  // For a lock that is shared. NFS gives an exclusive one only to writers.
  if (fd < 0 && missing == Missing::kError && errno != ENOENT) fd = open(O_RDONLY);
  if (fd < 0) return PosixError("open", path, errno);
  return FileLock(UniqueFd(fd), std::move(path));
}

Result<bool> FileLock::TryLock(How how) {
  GiveUpShared(fd_, how);
  int result = 0;
  do result = ::flock(fd_.get(), Operation(how) | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return PosixError("lock", path_, errno);
}

Status FileLock::Lock(How how) {
  GiveUpShared(fd_, how);
  while (::flock(fd_.get(), Operation(how)) != 0)
    if (errno != EINTR) return PosixError("lock", path_, errno);
  return OkStatus();
}

bool FileLock::IsAtItsPath() const {
  struct stat ours, there;
  return ::fstat(fd_.get(), &ours) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

}  // namespace cairn
