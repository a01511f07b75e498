#include "tools/archive/schedule/touch.h"

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
  Toucher(int64_t now, int64_t older_than, bool dry_run, const std::function<void(const Touched&)>& touched)
      : last_access_(now - older_than), dry_run_(dry_run), touched_(touched) {}

  void Touch(const stdfs::path& path) {
    struct stat st;
    if (::lstat(path.c_str(), &st) != 0) return Fail(path, errno);
    if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode)) return;
    if (st.st_atim.tv_sec > last_access_) return;
    constexpr timespec kAccessNow[] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    if (!dry_run_ && ::utimensat(AT_FDCWD, path.c_str(), kAccessNow, AT_SYMLINK_NOFOLLOW) != 0)
      return Fail(path, errno);
    if (!dry_run_ && touched_) Tell(path, st);
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
  void Tell(const stdfs::path& path, const struct stat& before) {
    struct stat after;
    if (::lstat(path.c_str(), &after) != 0 || after.st_ino != before.st_ino ||
        after.st_size != before.st_size || Nanoseconds(after.st_mtim) != Nanoseconds(before.st_mtim))
      return;  // somebody else was there too
    touched_({path.string(), before.st_ino, Nanoseconds(before.st_ctim), Nanoseconds(after.st_ctim)});
  }

  static int64_t Nanoseconds(const timespec& time) { return time.tv_sec * 1'000'000'000 + time.tv_nsec; }

  void Fail(const stdfs::path& path, int error) {
    ++report_.failures;
    if (report_.problems.size() < kMaxProblems)
      report_.problems.push_back(
          fmt::format("{}: its access time stays: {}", path.string(), strerror(error)));
  }

  const int64_t last_access_;
  const bool dry_run_;
  const std::function<void(const Touched&)>& touched_;
  TouchReport report_;
};

}  // namespace

Result<TouchReport> TouchAccessTimes(const std::string& path, int64_t now_unix_seconds,
                                     int64_t older_than_seconds, bool dry_run,
                                     const std::function<void(const Touched&)>& touched) {
  std::error_code error;
  const stdfs::file_status status = stdfs::status(path, error);
  if (!stdfs::exists(status)) return NotFound("{}: {}", path, strerror(error ? error.value() : ENOENT));
  Toucher toucher(now_unix_seconds, older_than_seconds, dry_run, touched);
  if (stdfs::is_directory(status))
    toucher.TouchBelow(path);
  else
    toucher.Touch(path);
  return toucher.Take();
}

}  // namespace cairn
