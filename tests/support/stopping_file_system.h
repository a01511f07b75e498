// Lets `changes` changes of the disk through and no more, as for a process that was killed then.
#pragma once

#include <atomic>

#include "tests/support/wrapped_file_system.h"

namespace cairn {

class StoppingFileSystem final : public WrappedFileSystem {
 public:
  explicit StoppingFileSystem(int changes) : WrappedFileSystem(FileSystem::Posix()), left_(changes) {}

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    if (!call.changes() || call.kind == FsCall::Kind::kAllocate || left_-- > 0) return run();
    return IoError("stopped here");
  }

 private:
  std::atomic<int> left_;
};

}  // namespace cairn
