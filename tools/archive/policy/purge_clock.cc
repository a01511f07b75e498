#include "tools/archive/policy/purge_clock.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "ckpt/base/enum_names.h"

namespace cairn {

Result<AccessTimes> AccessTimesAt(const std::string& path) {
  struct statvfs st;
  if (::statvfs(path.c_str(), &st) != 0) return IoError("statvfs {}: {}", path, strerror(errno));
  if ((st.f_flag & (ST_NOATIME | ST_RDONLY)) != 0) return AccessTimes::kFrozen;
  return (st.f_flag & ST_RELATIME) != 0 ? AccessTimes::kRelative : AccessTimes::kExact;
}

std::string_view Name(AccessTimes times) {
  return NameIn<AccessTimes::kFrozen>({"strictatime", "relatime", "noatime"}, times);
}

std::string_view Caveat(AccessTimes times) {
  switch (times) {
    case AccessTimes::kExact:
      return "";
    case AccessTimes::kRelative:
      return "mounted relatime: a read updates the access time at most once a day, so the purge may come up "
             "to a day earlier than the last read suggests";
    case AccessTimes::kFrozen:
      return "mounted noatime or read-only: reading a file does not update its access time, so reading does "
             "not postpone the purge";
  }
  return "";
}

double DaysUntilPurge(int64_t used_unix_seconds, int64_t now_unix_seconds, int purge_days) {
  if (used_unix_seconds == std::numeric_limits<int64_t>::max())
    return std::numeric_limits<double>::infinity();
  return purge_days - static_cast<double>(now_unix_seconds - used_unix_seconds) / 86400;
}

std::string DaysText(double days) {
  return days <= 0 ? "overdue" : std::isfinite(days) ? fmt::format("{:.1f} d", days) : "-";
}

}  // namespace cairn
