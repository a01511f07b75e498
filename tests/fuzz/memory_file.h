// Bytes in memory as a File, and such files as a FileSystem, for readers.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "ckpt/io/file_system.h"

namespace cairn {

class MemoryFile : public File {
 public:
  explicit MemoryFile(std::string_view bytes, std::string path = "fuzz")
      : bytes_(bytes), path_(std::move(path)) {}

  Status WriteAt(uint64_t, std::span<const std::byte>) override { return NotSupported("read only"); }
  Status ReadAt(uint64_t offset, std::span<std::byte> bytes) override {
    if (offset > bytes_.size() || bytes.size() > bytes_.size() - offset)
      return Corrupt("the file ends before");
    if (!bytes.empty()) std::memcpy(bytes.data(), bytes_.data() + offset, bytes.size());
    return OkStatus();
  }
  Status Allocate(uint64_t) override { return NotSupported("read only"); }
  Status Sync() override { return OkStatus(); }
  Status Close() override { return OkStatus(); }
  bool direct() const override { return false; }
  const std::string& path() const override { return path_; }

 private:
  std::string_view bytes_;
  std::string path_;
};

// Files by path; the directories are those that some path is in. The bytes must outlive it.
class MemoryFileSystem : public FileSystem {
 public:
  std::map<std::string, std::string_view, std::less<>> files;

  Result<std::unique_ptr<File>> OpenForRead(const std::string& path, Direct) override {
    const auto found = files.find(path);
    if (found == files.end()) return NotFound("{}: no such file", path);
    return std::unique_ptr<File>(std::make_unique<MemoryFile>(found->second, path));
  }
  Result<FileInfo> Stat(const std::string& path) override {
    if (const auto found = files.find(path); found != files.end())
      return FileInfo{.bytes = found->second.size()};
    const auto below = files.lower_bound(path + "/");
    if (below == files.end() || !below->first.starts_with(path + "/"))
      return NotFound("{}: no such file", path);
    return FileInfo{.kind = FileKind::kDirectory};
  }
  Result<std::vector<std::string>> List(const std::string& directory) override {
    std::vector<std::string> names;
    const std::string prefix = directory + "/";
    for (auto at = files.lower_bound(prefix); at != files.end() && at->first.starts_with(prefix); ++at) {
      std::string name = at->first.substr(prefix.size());
      name.resize(std::min(name.size(), name.find('/')));
      if (names.empty() || names.back() != name) names.push_back(std::move(name));
    }
    return names;
  }

  Result<std::unique_ptr<File>> Create(const std::string&, Direct) override { return ReadOnly(); }
  Status MakeDir(const std::string&) override { return ReadOnly(); }
  Status Rename(const std::string&, const std::string&) override { return ReadOnly(); }
  Status Exchange(const std::string&, const std::string&) override { return ReadOnly(); }
  Status RemoveFile(const std::string&) override { return ReadOnly(); }
  Status RemoveDir(const std::string&) override { return ReadOnly(); }
  Status SyncDir(const std::string&) override { return ReadOnly(); }
  Result<uint64_t> FreeBytes(const std::string&) override { return uint64_t{0}; }

 private:
  static Status ReadOnly() { return NotSupported("read only"); }
};

}  // namespace cairn
