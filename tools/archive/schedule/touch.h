// New access times for files on scratch, for who may and must put a purge off instead of archiving.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

struct TouchReport {
  uint64_t files = 0;  // files and links that got (or, on a dry run, would get) the access time of now
  uint64_t bytes = 0;
  int64_t oldest_access_unix_seconds = INT64_MAX;  // among those, before
  uint64_t failures = 0;
  std::vector<std::string> problems;  // the first of them, one line each
};

// A file whose access time was set, which moves the time of change of its inode too. Its contents did not
// change meanwhile, as far as size and modification time say.
struct Touched {
  std::string path;
  uint64_t inode = 0;
  int64_t changed_before_unix_nanoseconds = 0;
  int64_t changed_after_unix_nanoseconds = 0;
};

// All files of which nobody read a byte for `older_than_seconds` at `path`, a file or a directory and all
// below it; links themselves, never what they point to. Contents and modification times stay. Goes on past
// what it may not touch. `touched` is told of each. Errors: NotFound where `path` is not there.
Result<TouchReport> TouchAccessTimes(const std::string& path, int64_t now_unix_seconds,
                                     int64_t older_than_seconds, bool dry_run,
                                     const std::function<void(const Touched&)>& touched = {});

}  // namespace cairn
