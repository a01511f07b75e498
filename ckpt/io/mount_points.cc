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

constexpr size_t kMountPointField = 4;  // counted from 0; proc(5)

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

std::string_view Field(std::string_view line, size_t number) {
  for (; number > 0; --number) line.remove_prefix(std::min(line.size(), line.find(' ') + 1));
  return line.substr(0, line.find(' '));
}

std::optional<dev_t> DeviceOf(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 ? std::optional(st.st_dev) : std::nullopt;
}

}  // namespace

std::vector<std::string> MountPointsIn(std::string_view mount_info, const std::string& directory) {
  std::vector<std::string> points;
  while (!mount_info.empty()) {
    const std::string_view line = mount_info.substr(0, mount_info.find('\n'));
    mount_info.remove_prefix(std::min(mount_info.size(), line.size() + 1));
    std::string point = Unescape(Field(line, kMountPointField));
    if ((point + "/").starts_with(directory + "/")) points.push_back(std::move(point));
  }
  return points;
}

Status CheckNoMount(const std::string& directory, const std::vector<std::string>& directories) {
  std::ifstream file("/proc/self/mountinfo");
  const std::string mount_info{std::istreambuf_iterator<char>(file), {}};
  const std::string place = CanonicalPath(directory);
  if (const auto points = MountPointsIn(mount_info, place); !points.empty())
    return InvalidArgument("{}: something is mounted at {}; it stays, unmount that first", directory,
                           points[0]);
  const auto device = DeviceOf(std::filesystem::path(place).parent_path().string());
  std::vector<std::string> all{place};
  for (const std::string& below : directories) all.push_back((std::filesystem::path(place) / below).string());
  for (const std::string& path : all)
    if (DeviceOf(path) != device)
      return InvalidArgument("{}: {} lies on another file system; it stays, unmount that first", directory,
                             path);
  return OkStatus();
}

}  // namespace cairn
