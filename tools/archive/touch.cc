#include "tools/archive/touch.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace cairn {
namespace {

namespace stdfs = std::filesystem;

constexpr size_t kMaxProblems = 16;

class Toucher {
 public:
  Toucher(int64_t now, int64_t older_than, bool dry_run)
      : last_access_(now - older_than), dry_run_(dry_run) {}

  void Touch(const stdfs::path& path) {
    struct stat st;
    if (::lstat(path.c_str(), &st) != 0) return Fail(path, errno);
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode)) return;
    if (st.st_atim.tv_sec > last_access_) return;
    constexpr timespec kAccessNow[] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    if (!dry_run_ && ::utimensat(AT_FDCWD, path.c_str(), kAccessNow, AT_SYMLINK_NOFOLLOW) != 0)
      return Fail(path, errno);
    ++report_.files;
    report_.bytes += static_cast<uint64_t>(st.st_size);
    report_.oldest_access_unix_seconds =
        std::min<int64_t>(report_.oldest_access_unix_seconds, st.st_atim.tv_sec);
  }

  // One directory at a time: one that cannot be read does not end the walk.
  void TouchBelow(const stdfs::path& directory) {
    std::error_code error;
    stdfs::directory_iterator entry(directory, error);
    while (!error && entry != stdfs::directory_iterator()) {
      std::error_code unknown;
      if (entry->symlink_status(unknown).type() == stdfs::file_type::directory)
        TouchBelow(entry->path());
      else
        Touch(entry->path());
      entry.increment(error);
    }
    if (error) Fail(directory, error.value());
  }

  TouchReport Take() { return std::move(report_); }

 private:
  void Fail(const stdfs::path& path, int error) {
    ++report_.failures;
    if (report_.problems.size() < kMaxProblems)
      report_.problems.push_back(
          fmt::format("{}: its access time stays: {}", path.string(), strerror(error)));
  }

  const int64_t last_access_;
  const bool dry_run_;
  TouchReport report_;
};

}  // namespace

Result<TouchReport> TouchAccessTimes(const std::string& path, int64_t now_unix_seconds,
                                     int64_t older_than_seconds, bool dry_run) {
  std::error_code error;
  const stdfs::file_status status = stdfs::status(path, error);
  if (!stdfs::exists(status)) return NotFound("{}: {}", path, strerror(error ? error.value() : ENOENT));
  Toucher toucher(now_unix_seconds, older_than_seconds, dry_run);
  if (stdfs::is_directory(status))
    toucher.TouchBelow(path);
  else
    toucher.Touch(path);
  return toucher.Take();
}

}  // namespace cairn
