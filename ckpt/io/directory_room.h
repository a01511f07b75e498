// How many bytes and files a directory can still take: what its file system has free, and what the quotas of
// the owner of new files leave. A project's quota is part of the free space, as ext4, XFS and Lustre report
// it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"
#include "ckpt/io/file_system.h"

namespace cairn {

// The size of a file system.
struct Capacity {
  uint64_t bytes = 0;
  uint64_t files = 0, free_files = 0;  // 0 of 0: it does not count them
};
// Errors: IoError.
Result<Capacity> CapacityOf(const std::string& directory);

// A limit of 0 is none.
struct QuotaUse {
  std::string who;  // "user 1000"
  uint64_t bytes = 0, byte_limit = 0, files = 0, file_limit = 0;
};
// Those of this user, and of the group that new files get: from the kernel, on Lustre from lfs(1). Errors:
// NotFound "none is on"; NotSupported, IoError if it cannot be asked.
std::vector<Result<QuotaUse>> QuotasOf(const std::string& directory);
// From what `lfs quota -q` prints. Errors: NotSupported.
Result<QuotaUse> ReadLustreQuota(std::string who, const std::string& text);

struct Room {
  uint64_t bytes = 0, files = 0;
};
// UINT64_MAX for what has no limit.
Room LeftOf(const QuotaUse& use);

struct RoomLimit {
  Room left;
  std::string which;  // "free", "left of the quota of user 1000"
};
// Those that hold for `path`, which need not exist yet. A quota that cannot be asked is not among them, and
// the kernel holds root to none. Errors: those of FreeBytes.
Result<std::vector<RoomLimit>> LimitsAt(FileSystem& fs, const std::string& path);
// Errors: NoSpace naming both figures.
Status CheckRoom(const std::string& path, const Room& need, const std::vector<RoomLimit>& limits);

}  // namespace cairn
