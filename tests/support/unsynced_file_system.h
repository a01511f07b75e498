// The real file system without syncs: for tests that write thousands of small files and simulate no
// crash.
#pragma once

#include "tests/support/wrapped_file_system.h"

namespace cairn {

class UnsyncedFileSystem : public WrappedFileSystem {
 public:
  UnsyncedFileSystem() : WrappedFileSystem(FileSystem::Posix()) {}
  Result<std::unique_ptr<File>> Create(const std::string& path, Direct) override {
    return WrappedFileSystem::Create(path, Direct::kOff);
  }
  Result<std::unique_ptr<File>> OpenForWrite(const std::string& path, Direct) override {
    return WrappedFileSystem::OpenForWrite(path, Direct::kOff);
  }

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    const bool sync = call.kind == FsCall::Kind::kSync || call.kind == FsCall::Kind::kSyncDir;
    return sync ? OkStatus() : run();
  }
};

}  // namespace cairn
