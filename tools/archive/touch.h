// New access times for files on scratch, for who may and must put a purge off instead of archiving.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/status.h"

namespace cairn {

struct TouchReport {
  uint64_t files = 0;  // files and links that got (or, on a dry run, would get) the access time of now
  uint64_t bytes = 0;
  int64_t oldest_access_unix_seconds = INT64_MAX;  // among those, before
  uint64_t failures = 0;
  std::vector<std::string> problems;  // the first of them, one line each
};

// All files of which nobody read a byte for `older_than_seconds` at `path`, a file or a directory and all
// below it; links themselves, never what they point to. Contents and modification times stay. Goes on past
// what it may not touch. Errors: NotFound where `path` is not there.
Result<TouchReport> TouchAccessTimes(const std::string& path, int64_t now_unix_seconds,
                                     int64_t older_than_seconds, bool dry_run);

}  // namespace cairn
