#include "ckpt/io/mount_points.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "ckpt/base/canonical_path.h"

namespace cairn {
namespace {

constexpr size_t kMountPointField = 4, kMountOptionsField = 5;  // counted from 0; proc(5)

// Options of Lustre, NFS, SMB, GFS2 and OCFS2.
constexpr std::string_view kLocalLockOptions[] = {"localflock",     "nolock", "local_lock=flock",
                                                  "local_lock=all", "nobrl",  "localflocks"};

// The kernel writes blanks, line breaks and backslashes as three octal digits.
std::string Unescape(std::string_view text) {
  std::string path;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\\' || text.size() - at < 4) {
      path += text[at];
      continue;
    }
    path += static_cast<char>((text[at + 1] - '0') * 64 + (text[at + 2] - '0') * 8 + text[at + 3] - '0');
    at += 3;
  }
  return path;
}

// From the `number`-th field on.
std::string_view FieldsFrom(std::string_view line, size_t number) {
  for (; number > 0; --number) line.remove_prefix(std::min(line.size(), line.find(' ') + 1));
  return line;
}

std::string_view Field(std::string_view line, size_t number) {
  const std::string_view from = FieldsFrom(line, number);
  return from.substr(0, from.find(' '));
}

std::string ReadMountInfo() {
  std::ifstream file("/proc/self/mountinfo");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string_view NextLine(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

// That of the longest path, and of those the last.
std::string_view MountLine(std::string_view mount_info, const std::string& directory) {
  std::string_view best;
  size_t best_size = 0;
  while (!mount_info.empty()) {
    const std::string_view line = NextLine(mount_info);
    const std::string point = Unescape(Field(line, kMountPointField));
    const bool above = point == "/" || (directory + "/").starts_with(point + "/");
    if (!above || point.size() < best_size) continue;
    best = line;
    best_size = point.size();
  }
  return best;
}

void AddOptions(std::string_view text, std::vector<std::string>& options) {
  while (!text.empty()) {
    const std::string_view option = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), option.size() + 1));
    options.push_back(Unescape(option));
  }
}

std::optional<dev_t> DeviceOf(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 ? std::optional(st.st_dev) : std::nullopt;
}

}  // namespace

std::vector<std::string> MountPointsIn(std::string_view mount_info, const std::string& directory) {
  std::vector<std::string> points;
  while (!mount_info.empty()) {
    std::string point = Unescape(Field(NextLine(mount_info), kMountPointField));
    if ((point + "/").starts_with(directory + "/")) points.push_back(std::move(point));
  }
  return points;
}

Status CheckNoMount(const std::string& directory, const std::vector<std::string>& directories) {
  const std::string mount_info = ReadMountInfo();
  const std::string place = CanonicalPath(directory);
  if (const auto points = MountPointsIn(mount_info, place); !points.empty())
    return InvalidArgument("{}: something is mounted at {}; nothing was removed, unmount it first", directory,
                           points[0]);
  const auto device = DeviceOf(std::filesystem::path(place).parent_path().string());
  std::vector<std::string> all{place};
  for (const std::string& below : directories) all.push_back((std::filesystem::path(place) / below).string());
  for (const std::string& path : all)
    if (DeviceOf(path) != device)
      return InvalidArgument("{}: {} is on another file system; nothing was removed, unmount it first",
                             directory, path);
  return OkStatus();
}

Mount MountOf(std::string_view mount_info, const std::string& directory) {
  const std::string_view line = MountLine(mount_info, directory);
  // A line: fields, optional fields, "-", type, source, options.
  const size_t end = std::min(line.size(), line.find(" - "));
  const std::string_view file_system = FieldsFrom(line.substr(end), 2);
  Mount mount{.point = Unescape(Field(line, kMountPointField)), .type = std::string(Field(file_system, 0))};
  AddOptions(Field(line, kMountOptionsField), mount.options);
  AddOptions(Field(file_system, 2), mount.options);
  return mount;
}

Mount MountOf(const std::string& path) { return MountOf(ReadMountInfo(), CanonicalPath(path)); }

std::string LocalLocksIn(const Mount& mount) {
  for (const std::string& option : mount.options)
    if (std::ranges::find(kLocalLockOptions, option) != std::end(kLocalLockOptions))
      return fmt::format("{} is mounted with {} ({})", mount.point, option, mount.type);
  const bool fuse = mount.type == "fuse" || mount.type.starts_with("fuse.");
  if (mount.type == "beegfs" || (fuse && mount.type != "fuse.fuse-overlayfs"))
    return fmt::format("{} is {}, whose options do not say whether locks reach other hosts", mount.point,
                       mount.type);
  return "";
}

std::string LocalLocksWarning(const std::string& directory) {
  const std::string why = LocalLocksIn(MountOf(directory));
  if (why.empty()) return "";
  return fmt::format(
      "{}: a lock here may exclude only processes of this host: {}; let only one job write here, or mount it "
      "with locks that all hosts share",
      directory, why);
}

}  // namespace cairn
