#include "tools/source/read_log.h"

#include <algorithm>
#include <filesystem>

namespace cairn {
namespace {

std::string Normal(const std::string& path) {
  std::string normal = std::filesystem::path(path).lexically_normal().string();
  while (normal.size() > 1 && normal.ends_with('/')) normal.pop_back();
  return normal;
}

std::string WithoutDigits(std::string name) {
  std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
  return name;
}

}  // namespace

Result<std::unique_ptr<File>> ReadLog::OpenForRead(const std::string& path, Direct direct) {
  Add(path);
  return base_.OpenForRead(path, direct);
}

void ReadLog::Add(const std::string& path) {
  const std::lock_guard lock(mutex_);
  read_.insert(Normal(path));
}

std::vector<std::string> ReadLog::Unread(const std::string& directory) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> unread;
  AddUnread(Normal(directory), "", unread);
  return unread;
}

bool ReadLog::HasReadBelow(const std::string& directory) const {
  const std::string prefix = directory + "/";
  const auto first = read_.lower_bound(prefix);
  return first != read_.end() && first->starts_with(prefix);
}

void ReadLog::AddUnread(const std::string& directory, const std::string& below,
                        std::vector<std::string>& unread) const {
  const auto names = base_.List(directory);
  if (!names.ok()) return;
  std::set<std::string> steps;  // names of directories that were read, without their digits
  std::vector<std::string> directories;
  for (const std::string& name : *names) {
    const std::string path = Normal(JoinPath(directory, name));
    const auto info = base_.Stat(path);
    const bool is_directory = info.ok() && info->is_directory();
    if (is_directory && HasReadBelow(path)) {
      steps.insert(WithoutDigits(name));
      AddUnread(path, below + name + "/", unread);
    } else if (is_directory) {
      directories.push_back(name);
    } else if (!read_.contains(path)) {
      unread.push_back(below + name);
    }
  }
  for (const std::string& name : directories)
    if (!steps.contains(WithoutDigits(name))) unread.push_back(below + name + "/");
}

}  // namespace cairn
