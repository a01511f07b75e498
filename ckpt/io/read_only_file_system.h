// Base of the file systems that only show what lies elsewhere: every write through them is refused.
#pragma once

#include "ckpt/io/file_system.h"

namespace cairn {

class ReadOnlyFileSystem : public FileSystem {
 public:
  Result<std::unique_ptr<File>> Create(const std::string& path, Direct) override { return Refuse(path); }
  Status MakeDir(const std::string& path) override { return Refuse(path); }
  Status Rename(const std::string& from, const std::string&) override { return Refuse(from); }
  Status Exchange(const std::string& a, const std::string&) override { return Refuse(a); }
  Status RemoveFile(const std::string& path) override { return Refuse(path); }
  Status RemoveDir(const std::string& path) override { return Refuse(path); }
  Status SyncDir(const std::string& path) override { return Refuse(path); }
  Result<uint64_t> FreeBytes(const std::string& path) override { return Refuse(path); }

 private:
  static Status Refuse(const std::string& path) { return InvalidArgument("{} can only be read", path); }
};

class ReadOnlyFile : public File {
 public:
  Status WriteAt(uint64_t, std::span<const std::byte>) override { return Refuse(); }
  Status Allocate(uint64_t) override { return Refuse(); }
  Status Sync() override { return Refuse(); }
  Status Close() override { return OkStatus(); }
  bool direct() const override { return false; }

 private:
  Status Refuse() const { return InvalidArgument("{} can only be read", path()); }
};

}  // namespace cairn
