// When a purge would delete a file, and how exactly the mount keeps those times.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

enum class AccessTimes {
  kExact,     // every read counts (strictatime)
  kRelative,  // relatime: a read counts at most once a day, or if the file was written since
  kFrozen,    // noatime or read-only: no read counts, only the write that made the file
};

// For the mount that `path` lies on.
Result<AccessTimes> AccessTimesAt(const std::string& path);

std::string_view Name(AccessTimes times);  // "strictatime", "relatime", "noatime"
// One sentence for people; empty if no warning is needed.
std::string_view Caveat(AccessTimes times);

// Days until a file last used at `used` is `purge_days` old; negative if that time has passed, infinite if
// there is no file (FileTimes).
double DaysUntilPurge(int64_t used_unix_seconds, int64_t now_unix_seconds, int purge_days);
// "2.5 d", "overdue", or "-" if there is no file.
std::string DaysText(double days);

}  // namespace cairn
