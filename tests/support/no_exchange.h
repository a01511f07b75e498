// A file system that cannot exchange two names, like NFS.
#pragma once

#include "tests/support/wrapped_file_system.h"

namespace cairn {

class NoExchange final : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    return call.kind == FsCall::Kind::kExchange ? NotSupported("no exchange") : run();
  }
};

}  // namespace cairn
