#include "ckpt/io/directory_facts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>

#include "ckpt/base/posix_error.h"
#include "ckpt/base/unix_nanoseconds.h"

namespace cairn {
namespace {

Result<DirectoryFacts> Look(const std::string& path, int flags) {
  struct statx st;
  if (::statx(AT_FDCWD, path.c_str(), flags, STATX_INO | STATX_UID | STATX_BTIME, &st) != 0)
    return PosixError("find", path, errno);
  const bool born = (st.stx_mask & STATX_BTIME) != 0;
  return DirectoryFacts{
      .inode = st.stx_ino,
      .born_unix_nanoseconds = born ? UnixNanoseconds(st.stx_btime.tv_sec, st.stx_btime.tv_nsec) : 0,
      .device = makedev(st.stx_dev_major, st.stx_dev_minor),
      .owner = st.stx_uid};
}

}  // namespace

Result<DirectoryFacts> FactsOfDirectory(const std::string& path) { return Look(path, 0); }

Result<DirectoryFacts> FactsOf(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const FileInfo info, fs.LinkStat(path));
  const Result<DirectoryFacts> real = Look(path, AT_SYMLINK_NOFOLLOW);
  return real.ok() && real->inode == info.inode ? *real : DirectoryFacts{.inode = info.inode};
}

}  // namespace cairn
