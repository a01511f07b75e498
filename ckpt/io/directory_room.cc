#include "ckpt/io/directory_room.h"

#include <fcntl.h>
#include <linux/quota.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "ckpt/base/child.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/base/unique_fd.h"
#include "ckpt/io/mount_points.h"

namespace cairn {
namespace {

constexpr uint64_t kQuotaBlockBytes = 1024;  // quotactl(2)

Result<QuotaUse> AskKernel(const std::string& directory, int type, std::string who, uint32_t id) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct dqblk use = {};
  const auto command = static_cast<unsigned>(QCMD(Q_GETQUOTA, type));
  if (fd.get() >= 0 && ::syscall(SYS_quotactl_fd, fd.get(), command, id, &use) == 0)
    return QuotaUse{.who = std::move(who),
                    .bytes = use.dqb_curspace,
                    .byte_limit = use.dqb_bhardlimit * kQuotaBlockBytes,
                    .files = use.dqb_curinodes,
                    .file_limit = use.dqb_ihardlimit};
  if (errno == ESRCH) return NotFound("none is on");
  return NotSupported("the kernel does not report it: {}", strerror(errno));
}

Result<QuotaUse> AskLustre(const std::string& directory, int type, std::string who, uint32_t id) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, Ask({"lfs", "quota", "-q", type == USRQUOTA ? "-u" : "-g",
                                                      std::to_string(id), directory}));
  return ReadLustreQuota(std::move(who), text);
}

// In a directory with the setgid bit they get its group.
gid_t GroupOfNewFiles(const std::string& directory) {
  struct stat st;
  return ::stat(directory.c_str(), &st) == 0 && (st.st_mode & S_ISGID) != 0 ? st.st_gid : ::getegid();
}

}  // namespace

Result<Capacity> CapacityOf(const std::string& directory) {
  struct statvfs st;
  if (::statvfs(directory.c_str(), &st) != 0) return IoError("statvfs {}: {}", directory, strerror(errno));
  return Capacity{uint64_t{st.f_blocks} * st.f_frsize, st.f_files, st.f_favail};
}

// "/scratch 120 0 1000 - 7 0 100 -": KiB, quota, limit, grace, files, quota, limit, grace. A number over its
// quota has a star.
Result<QuotaUse> ReadLustreQuota(std::string who, const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> row;
  for (std::string word; words >> word;) row.push_back(word);
  if (row.size() < 9) return NotSupported("lfs quota says: {}", text);
  const auto number = [&](size_t at) {
    std::string_view rest = row[at];
    return TakeNumber<uint64_t>(rest).value_or(0);
  };
  return QuotaUse{std::move(who), number(1) << 10, number(3) << 10, number(5), number(7)};
}

std::vector<Result<QuotaUse>> QuotasOf(const std::string& directory) {
  const auto ask = MountOf(directory).type == "lustre" ? AskLustre : AskKernel;
  const uid_t user = ::geteuid();
  const gid_t group = GroupOfNewFiles(directory);
  return {ask(directory, USRQUOTA, fmt::format("user {}", user), user),
          ask(directory, GRPQUOTA, fmt::format("group {}", group), group)};
}

Room LeftOf(const QuotaUse& use) {
  const auto left = [](uint64_t used, uint64_t limit) {
    return limit == 0 ? UINT64_MAX : limit - std::min(used, limit);
  };
  return {left(use.bytes, use.byte_limit), left(use.files, use.file_limit)};
}

Result<std::vector<RoomLimit>> LimitsAt(FileSystem& fs, const std::string& path) {
  std::string nearest = path;
  while (!fs.Stat(nearest).ok() && nearest != "." && nearest != "/") nearest = ParentDir(nearest);
  CAIRN_ASSIGN_OR_RETURN(const uint64_t free_bytes, fs.FreeBytes(nearest));
  std::vector<RoomLimit> limits = {{{free_bytes, UINT64_MAX}, "free"}};
  if (!fs.HasOtherProcesses()) return limits;
  const Result<Capacity> capacity = CapacityOf(nearest);
  if (capacity.ok() && capacity->files > 0) limits[0].left.files = capacity->free_files;
  if (::geteuid() == 0) return limits;
  for (const Result<QuotaUse>& use : QuotasOf(nearest))
    if (use.ok()) limits.push_back({LeftOf(*use), fmt::format("left of the quota of {}", use->who)});
  return limits;
}

Status CheckRoom(const std::string& path, const Room& need, const std::vector<RoomLimit>& limits) {
  const auto fits = [&](uint64_t needed, uint64_t left, std::string_view unit, const RoomLimit& limit) {
    if (needed <= left) return OkStatus();
    return NoSpace("{}: needs about {} {}, but only {} are {}; free some space or choose another path", path,
                   needed, unit, left, limit.which);
  };
  for (const RoomLimit& limit : limits) {
    CAIRN_RETURN_IF_ERROR(fits(need.bytes, limit.left.bytes, "bytes", limit));
    CAIRN_RETURN_IF_ERROR(fits(need.files, limit.left.files, "files", limit));
  }
  return OkStatus();
}

}  // namespace cairn
