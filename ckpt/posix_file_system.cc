// The real file system. errno becomes a Status in one function here, which always carries the path.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ckpt/file_system.h"

namespace cairn {
namespace {

Status PosixError(std::string_view what, const std::string& path, int error) {
  const char* text = strerror(error);
  switch (error) {
    case ENOENT:
      return NotFound("{} {}: {}", what, path, text);
    case EEXIST:
    case ENOTEMPTY:
      return AlreadyExists("{} {}: {}; nothing is overwritten, choose another place", what, path, text);
    case ENOSPC:
    case EDQUOT:
      return NoSpace("{} {}: {}; free some space or choose another place", what, path, text);
    default:
      return IoError("{} {}: {}", what, path, text);
  }
}

// Signals ask a training to save; they must not make that save fail.
int OpenUninterrupted(const std::string& path, int flags) {
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  while (fd < 0 && errno == EINTR);
  return fd;
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
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return PosixError("write", path_, n < 0 ? errno : EIO).WithContext(At(offset));
      bytes = bytes.subspan(n);
      offset += n;
    }
    return OkStatus();
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return PosixError("read", path_, errno).WithContext(At(offset));
      if (n == 0)
        return Corrupt("{} ends at byte {}, {} bytes short; the file was truncated", path_, offset,
                       bytes.size());
      bytes = bytes.subspan(n);
      offset += n;
    }
    return OkStatus();
  }

  Status Allocate(uint64_t bytes) override {
    int error = 0;
    do error = bytes == 0 ? 0 : ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
    while (error == EINTR);
    if (error == 0 || error == EOPNOTSUPP || error == EINVAL) return OkStatus();
    return PosixError("reserve space for", path_, error);
  }

  Status Sync() override { return ::fsync(fd_) == 0 ? OkStatus() : PosixError("fsync", path_, errno); }

  Status Close() override {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0 ? OkStatus() : PosixError("close", path_, errno);
  }

  bool direct() const override { return direct_; }
  const std::string& path() const override { return path_; }

 private:
  static std::string At(uint64_t offset) { return fmt::format("at byte {}", offset); }

  int fd_;
  std::string path_;
  bool direct_;
};

// Opens with O_DIRECT where asked for and taken (tmpfs and some network file systems refuse it with EINVAL).
Result<std::unique_ptr<File>> Open(const char* what, const std::string& path, int flags, Direct direct) {
  int fd = -1;
  bool is_direct = direct != Direct::kOff;
  if (is_direct) {
    fd = OpenUninterrupted(path, flags | O_DIRECT);
    if (fd < 0 && errno == EINVAL && direct == Direct::kAuto) {
      is_direct = false;
      flags &= ~O_EXCL;  // Linux may have created the file before it refused the flag
    } else if (fd < 0) {
      return PosixError(what, path, errno);
    }
  }
  if (fd < 0) fd = OpenUninterrupted(path, flags);
  if (fd < 0) return PosixError(what, path, errno);
  return std::unique_ptr<File>(std::make_unique<PosixFile>(fd, path, is_direct));
}

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct direct) override {
    return Open("open", path, O_RDONLY, direct);
  }

  Result<std::unique_ptr<File>> Create(const std::string& path, Direct direct) override {
    return Open("create", path, O_RDWR | O_CREAT | O_EXCL, direct);
  }

  Result<FileInfo> Stat(const std::string& path) override {
    struct stat st;
    if (::stat(path.c_str(), &st) != 0) return PosixError("find", path, errno);
    return FileInfo{S_ISDIR(st.st_mode), static_cast<uint64_t>(st.st_size), st.st_mtim.tv_sec,
                    st.st_atim.tv_sec};
  }

  Result<std::vector<std::string>> List(const std::string& directory) override {
    DIR* dir = ::opendir(directory.c_str());
    if (dir == nullptr) return PosixError("list", directory, errno);
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    ::closedir(dir);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status MakeDir(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return OkStatus();
    const int error = errno;
    const Result<FileInfo> info = Stat(path);
    return error == EEXIST && info.ok() && info->is_directory ? OkStatus()
                                                              : PosixError("make directory", path, error);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    return ::rename(from.c_str(), to.c_str()) == 0 ? OkStatus()
                                                   : PosixError("rename " + from + " to", to, errno);
  }

  Status Exchange(const std::string& a, const std::string& b) override {
    const int result = ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
    return result == 0 ? OkStatus() : PosixError("exchange " + a + " with", b, errno);
  }

  Status RemoveFile(const std::string& path) override {
    return ::unlink(path.c_str()) == 0 ? OkStatus() : PosixError("remove", path, errno);
  }

  Status RemoveDir(const std::string& path) override {
    return ::rmdir(path.c_str()) == 0 ? OkStatus() : PosixError("remove", path, errno);
  }

  Status SyncDir(const std::string& path) override {
    const int fd = OpenUninterrupted(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return PosixError("open", path, errno);
    PosixFile directory(fd, path, false);
    return directory.Sync();
  }

  Result<uint64_t> FreeBytes(const std::string& path) override {
    struct statvfs st;
    if (::statvfs(path.c_str(), &st) != 0) return PosixError("measure free space of", path, errno);
    return uint64_t{st.f_bavail} * st.f_frsize;
  }
};

}  // namespace

FileSystem& FileSystem::Posix() {
  static PosixFileSystem file_system;
  return file_system;
}

}  // namespace cairn
