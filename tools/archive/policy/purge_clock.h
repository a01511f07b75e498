// When a purge that goes by access times would take a file, and what the mount says those times are worth.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ckpt/base/status.h"

namespace cairn {

enum class AccessTimes {
  kExact,     // every read counts (strictatime)
  kRelative,  // relatime: a read counts once a day at most, or when the file was written since
  kFrozen,    // noatime or read-only: no read counts, only the write that made the file
};

// For the mount that `path` lies on.
Result<AccessTimes> AccessTimesAt(const std::string& path);

std::string_view Name(AccessTimes times);  // "strictatime", "relatime", "noatime"
// One sentence for people; empty if there is nothing to warn of.
std::string_view Caveat(AccessTimes times);

// Days until a file last accessed at `accessed` is `purge_days` old; negative when that is past.
double DaysUntilPurge(int64_t accessed_unix_seconds, int64_t now_unix_seconds, int purge_days);

}  // namespace cairn
