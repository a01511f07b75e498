// The real file system.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <shared_mutex>

#include "ckpt/base/posix_error.h"
#include "ckpt/base/unix_nanoseconds.h"
#include "ckpt/io/file_system.h"
#include "ckpt/io/fresh_names.h"

namespace cairn {
namespace {

// Signals ask a training to save; they must not make that save fail. Every call below goes through here but
// close(), after which the descriptor is gone whatever it says. An fsync() that was interrupted has reported
// nothing about the data yet; only then may it be called again.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// A call that looks for `path`. A name that the kernel remembers as missing may have been made by another
// host since.
template <typename Call>
auto Found(const std::string& path, Call call) {
  const auto result = Uninterrupted(call);
  if (result >= 0 || errno != ENOENT) return result;
  if (IsThereAfterAll(path)) return Uninterrupted(call);
  errno = ENOENT;
  return result;
}

// Whoever makes or renames a file shares it. Never destroyed: a thread may hold it for ever.
std::shared_mutex& Making() {
  static auto& mutex = *new std::shared_mutex;
  return mutex;
}
thread_local bool makes_files_alone = false;

// A call that makes or renames a file.
template <typename Call>
auto Made(Call call) {
  if (makes_files_alone) return Uninterrupted(call);
  const std::shared_lock making(Making());
  return Uninterrupted(call);
}

int Open(const std::string& path, int flags) {
  const auto open = [&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); };
  return (flags & O_CREAT) != 0 ? Made(open) : Found(path, open);
}

class PosixFile final : public File {
 public:
  PosixFile(int fd, std::string path, bool direct) : fd_(fd), path_(std::move(path)), direct_(direct) {}
  ~PosixFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes) override {
    return Transfer(true, offset, bytes, [&](size_t done) {
      return ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    });
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    return Transfer(false, offset, bytes, [&](size_t done) {
      return ::pread(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    });
  }

  Status Allocate(uint64_t bytes) override {
    const auto length = static_cast<off_t>(bytes);
    const auto reserve = [&] { return ::fallocate(fd_, 0, 0, length); };
    if (bytes > 0 && Uninterrupted(reserve) != 0 && errno != EOPNOTSUPP && errno != EINVAL)
      return PosixError("reserve space for", path_, errno);
    return Uninterrupted([&] { return ::ftruncate(fd_, length); }) == 0
               ? OkStatus()
               : PosixError("set the size of", path_, errno);
  }

  Status Sync() override {
    return Uninterrupted([&] { return ::fsync(fd_); }) == 0 ? OkStatus() : PosixError("fsync", path_, errno);
  }

  Status Close() override {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0 ? OkStatus() : PosixError("close", path_, errno);
  }

  bool direct() const override { return direct_; }
  const std::string& path() const override { return path_; }
  int descriptor() const override { return fd_; }

 private:
  // Calls `transfer` (given the bytes done) until all is done.
  template <typename Span, typename Operation>
  Status Transfer(bool write, uint64_t offset, Span bytes, Operation transfer) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = transfer(done);
      if (n < 0 && errno == EINTR) continue;
      const size_t whole = n > 0 ? WholeTransfer(*this, n) : 0;
      if (whole == 0)
        return TransferError(write, path_, offset + done, bytes.size() - done, n < 0 ? errno : 0);
      done += whole;
    }
    return OkStatus();
  }

  int fd_;
  std::string path_;
  bool direct_;
};

// Opens with O_DIRECT if asked for and possible (tmpfs and some network file systems refuse it with EINVAL).
Result<std::unique_ptr<File>> OpenDescriptor(const char* what, const std::string& path, int flags,
                                             Direct direct) {
  int fd = -1;
  bool is_direct = direct != Direct::kOff;
  if (is_direct) {
    fd = Open(path, flags | O_DIRECT);
    if (fd < 0 && errno == EINVAL && direct == Direct::kAuto) {
      is_direct = false;
      flags &= ~O_EXCL;  // Linux may have created the file before it refused the flag
    } else if (fd < 0) {
      return PosixError(what, path, errno);
    }
  }
  if (fd < 0) fd = Open(path, flags);
  if (fd < 0) return PosixError(what, path, errno);
  return std::unique_ptr<File>(std::make_unique<PosixFile>(fd, path, is_direct));
}

// rename() with flags, if the file system knows them. NFS, Lustre and FUSE know none.
enum class Flagged { kDone, kUnknown, kFailed };
Flagged RenameFlagged(const std::string& from, const std::string& to, unsigned flags) {
  if (Made([&] { return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags); }) == 0)
    return Flagged::kDone;
  const bool unknown = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
  return unknown ? Flagged::kUnknown : Flagged::kFailed;
}

FileInfo InfoOf(const struct stat& st) {
  const FileKind kind = S_ISREG(st.st_mode)   ? FileKind::kFile
                        : S_ISDIR(st.st_mode) ? FileKind::kDirectory
                        : S_ISLNK(st.st_mode) ? FileKind::kLink
                                              : FileKind::kOther;
  const auto nanoseconds = [](const timespec& at) { return UnixNanoseconds(at.tv_sec, at.tv_nsec); };
  return {.kind = kind,
          .bytes = static_cast<uint64_t>(st.st_size),
          .modified_unix_seconds = st.st_mtim.tv_sec,
          .accessed_unix_seconds = st.st_atim.tv_sec,
          .modified_unix_nanoseconds = nanoseconds(st.st_mtim),
          .changed_unix_nanoseconds = nanoseconds(st.st_ctim),
          .mode = st.st_mode & 07777u,
          .user = st.st_uid,
          .group = st.st_gid,
          .device = st.st_dev,
          .inode = st.st_ino,
          .allocated_bytes = static_cast<uint64_t>(st.st_blocks) * 512};
}

// O_NONBLOCK, so that a FIFO does not wait for a writer; cleared again, because io_uring would then not wait
// for the disk.
Result<std::unique_ptr<File>> OpenRegular(const std::string& path, Direct direct) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                         OpenDescriptor("open", path, O_RDONLY | O_NONBLOCK, direct));
  struct stat st;
  if (Uninterrupted([&] { return ::fstat(file->descriptor(), &st); }) != 0)
    return PosixError("find", path, errno);
  if (S_ISDIR(st.st_mode)) return PosixError("read", path, EISDIR);
  if (!S_ISREG(st.st_mode))
    return NotSupported("{} is not a regular file but a FIFO, socket or device; move it away", path);
  const int flags = ::fcntl(file->descriptor(), F_GETFL);
  if (flags < 0 || ::fcntl(file->descriptor(), F_SETFL, flags & ~O_NONBLOCK) != 0)
    return PosixError("open", path, errno);
  return file;
}

class PosixFileSystem final : public FileSystem {
 public:
  bool HasOtherProcesses() const override { return true; }

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override {
    return OpenRegular(path, direct);
  }

  Result<std::unique_ptr<File>> Create(const std::string& path, Direct direct) override {
    return OpenDescriptor("create", path, O_RDWR | O_CREAT | O_EXCL, direct);
  }

  Result<std::unique_ptr<File>> OpenForWrite(const std::string& path, Direct direct) override {
    return OpenDescriptor("open", path, O_RDWR, direct);
  }

  Result<FileInfo> Stat(const std::string& path) override {
    struct stat st;
    if (Found(path, [&] { return ::stat(path.c_str(), &st); }) != 0) return PosixError("find", path, errno);
    return InfoOf(st);
  }

  Result<FileInfo> LinkStat(const std::string& path) override {
    struct stat st;
    if (Found(path, [&] { return ::lstat(path.c_str(), &st); }) != 0) return PosixError("find", path, errno);
    return InfoOf(st);
  }

  Result<std::vector<std::string>> List(const std::string& directory) override {
    const int fd = Open(directory, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return PosixError("list", directory, errno);
    DIR* const dir = ::fdopendir(fd);
    if (dir == nullptr) {
      const int error = errno;
      ::close(fd);
      return PosixError("list", directory, error);
    }
    std::vector<std::string> names;
    errno = 0;
    for (const dirent* entry = ::readdir(dir); entry != nullptr || errno == EINTR; entry = ::readdir(dir)) {
      const std::string_view name = entry == nullptr ? "." : entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(dir);
    if (error != 0) return PosixError("list", directory, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status MakeDir(const std::string& path) override {
    if (Made([&] { return ::mkdir(path.c_str(), 0777); }) == 0) return OkStatus();
    const int error = errno;
    const Result<FileInfo> info = Stat(path);
    return error == EEXIST && info.ok() && info->is_directory() ? OkStatus()
                                                                : PosixError("make directory", path, error);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    return Made([&] { return ::rename(from.c_str(), to.c_str()); }) == 0
               ? OkStatus()
               : PosixError("rename " + from + " to", to, errno);
  }

  Status Exchange(const std::string& a, const std::string& b) override {
    const Flagged exchanged = RenameFlagged(a, b, RENAME_EXCHANGE);
    if (exchanged == Flagged::kUnknown)
      return NotSupported("{}: its file system cannot exchange two names", b);
    return exchanged == Flagged::kDone ? OkStatus() : PosixError("exchange " + a + " with", b, errno);
  }

  // Without the flag: a link never replaces a file, and rename() replaces no directory but an empty one. Some
  // file systems have no links either; then it is checked first whether the name exists.
  Status RenameNew(const std::string& from, const std::string& to) override {
    const Flagged renamed = RenameFlagged(from, to, RENAME_NOREPLACE);
    if (renamed == Flagged::kDone) return OkStatus();
    if (renamed == Flagged::kFailed) return PosixError("rename " + from + " to", to, errno);
    CAIRN_ASSIGN_OR_RETURN(const FileInfo info, LinkStat(from));
    if (info.is_directory()) return FileSystem::RenameNew(from, to);
    if (Made([&] { return ::link(from.c_str(), to.c_str()); }) == 0) return RemoveFile(from);
    return errno == EEXIST ? PosixError("rename " + from + " to", to, errno)
                           : FileSystem::RenameNew(from, to);
  }

  Status MakeNewDir(const std::string& path) override {
    return Made([&] { return ::mkdir(path.c_str(), 0777); }) == 0 ? OkStatus()
                                                                  : PosixError("make directory", path, errno);
  }

  Status RemoveFile(const std::string& path) override {
    return Found(path, [&] { return ::unlink(path.c_str()); }) == 0 ? OkStatus()
                                                                    : PosixError("remove", path, errno);
  }

  Status RemoveDir(const std::string& path) override {
    return Found(path, [&] { return ::rmdir(path.c_str()); }) == 0 ? OkStatus()
                                                                   : PosixError("remove", path, errno);
  }

  Status SyncDir(const std::string& path) override {
    const int fd = Open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return PosixError("open", path, errno);
    PosixFile directory(fd, path, false);
    return directory.Sync();
  }

  Result<uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs st;
    if (Found(path, [&] { return ::statvfs(path.c_str(), &st); }) != 0)
      return PosixError("measure free space of", path, errno);
    return uint64_t{st.f_bavail} * st.f_frsize;
  }

  Result<std::string> ReadLink(const std::string& path) override {
    std::string target(PATH_MAX, '\0');
    const auto size = Found(path, [&] { return ::readlink(path.c_str(), target.data(), target.size()); });
    if (size < 0) return PosixError("read link", path, errno);
    target.resize(static_cast<size_t>(size));
    return target;
  }

  Status MakeLink(const std::string& target, const std::string& path) override {
    const auto make = [&] { return ::symlink(target.c_str(), path.c_str()); };
    return Made(make) == 0 ? OkStatus() : PosixError("make link", path, errno);
  }

  Status AddName(const std::string& file, const std::string& path) override {
    const auto make = [&] { return ::link(file.c_str(), path.c_str()); };
    return Made(make) == 0 ? OkStatus() : PosixError("make link", path, errno);
  }

  Status SetMode(const std::string& path, uint32_t mode) override {
    const auto set = [&] { return ::fchmodat(AT_FDCWD, path.c_str(), mode, AT_SYMLINK_NOFOLLOW); };
    return Found(path, set) == 0 ? OkStatus() : PosixError("set the mode of", path, errno);
  }

  Status SetOwner(const std::string& path, uint32_t user, uint32_t group) override {
    const auto set = [&] { return ::fchownat(AT_FDCWD, path.c_str(), user, group, AT_SYMLINK_NOFOLLOW); };
    return Found(path, set) == 0 ? OkStatus() : PosixError("set the owner of", path, errno);
  }

  Status SetModified(const std::string& path, int64_t unix_seconds, uint32_t nanoseconds) override {
    const timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                              {.tv_sec = unix_seconds, .tv_nsec = static_cast<long>(nanoseconds)}};
    const auto set = [&] { return ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW); };
    return Found(path, set) == 0 ? OkStatus() : PosixError("set the time of", path, errno);
  }

  // Non-blocking: it may be a named pipe.
  Result<FileLock> OpenLock(const std::string& path, FileLock::Missing missing) override {
    constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK;
    const bool create = missing == FileLock::Missing::kCreate;
    int fd = Open(path, kFlags | O_RDWR | (create ? O_CREAT : 0));
    // For a lock that is shared. NFS gives an exclusive one only to writers.
    if (fd < 0 && !create && errno != ENOENT) fd = Open(path, kFlags | O_RDONLY);
    if (fd < 0) return PosixError("open", path, errno);
    return FileLock(UniqueFd(fd), path);
  }

  std::unique_ptr<IoQueue> NewQueue(const IoQueueOptions& options) override {
    if (!options.uring) return NewThreadQueue(options.depth);
    Result<std::unique_ptr<IoQueue>> uring = NewUringQueue(options.depth);
    if (uring.ok()) return std::move(uring).value();
    return NewThreadQueue(options.depth, fmt::format("threads ({})", uring.status().message()));
  }
};

}  // namespace

FileSystem& FileSystem::Posix() {
  static PosixFileSystem file_system;
  return file_system;
}

void FileSystem::LetNoOtherThreadMakeFiles() {
  if (!makes_files_alone) Making().lock();  // and never unlocked
  makes_files_alone = true;
}

}  // namespace cairn
