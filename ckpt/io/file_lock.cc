#include "ckpt/io/file_lock.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

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

Result<bool> FileLock::TryLock(How how) {
  if (!fd_.ok()) return true;
  GiveUpShared(fd_, how);
  int result = 0;
  do result = ::flock(fd_.get(), Operation(how) | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  return PosixError("lock", path_, errno);
}

Status FileLock::Lock(How how) {
  if (!fd_.ok()) return OkStatus();
  GiveUpShared(fd_, how);
  while (::flock(fd_.get(), Operation(how)) != 0)
    if (errno != EINTR) return PosixError("lock", path_, errno);
  return OkStatus();
}

Result<std::string> FileLock::ReadText(size_t max_bytes) const {
  if (!fd_.ok()) return std::string();
  std::string text(max_bytes, '\0');
  ssize_t count = 0;
  do count = ::pread(fd_.get(), text.data(), text.size(), 0);
  while (count < 0 && errno == EINTR);
  if (count < 0) return PosixError("read", path_, errno);
  text.resize(static_cast<size_t>(count));
  return text;
}

Status FileLock::WriteText(std::string_view text) const {
  const auto size = static_cast<ssize_t>(text.size());
  errno = ENOSPC;  // for a short write
  if (::pwrite(fd_.get(), text.data(), text.size(), 0) != size || ::ftruncate(fd_.get(), size) != 0)
    return PosixError("write", path_, errno);
  return ::fdatasync(fd_.get()) == 0 ? OkStatus() : PosixError("fsync", path_, errno);
}

// By a byte-range lock, which fcntl() can query. NFS implements the flock itself as one.
void FileLock::Announce() const {
  struct statfs where;
  struct flock mark = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  if (::fstatfs(fd_.get(), &where) == 0 && where.f_type != NFS_SUPER_MAGIC)
    (void)::fcntl(fd_.get(), F_OFD_SETLK, &mark);
}

bool FileLock::IsAnnounced() const {
  struct flock other = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  return ::fcntl(fd_.get(), F_OFD_GETLK, &other) == 0 && other.l_type != F_UNLCK;
}

bool FileLock::IsAtItsPath() const {
  if (!fd_.ok()) return true;
  struct stat ours, there;
  return ::fstat(fd_.get(), &ours) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

}  // namespace cairn
