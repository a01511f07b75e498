// Another process that takes a run directory as soon as it is made.
#pragma once

#include <optional>

#include "ckpt/run/run_dir.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {

// Right after `run_dir` was made it is locked, and has a file `theirs`.
class OvertakingFileSystem final : public WrappedFileSystem {
 public:
  OvertakingFileSystem(FileSystem& base, std::string run_dir)
      : WrappedFileSystem(base), base_(base), run_dir_(std::move(run_dir)) {}

 private:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    CAIRN_RETURN_IF_ERROR(run());
    if (call.kind != FsCall::Kind::kMakeDir || call.path != run_dir_) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(lock_, RunLock::Take(FileSystem::Posix(), run_dir_));
    return WriteSmallFile(base_, JoinPath(run_dir_, "theirs"), "step");
  }

  FileSystem& base_;
  const std::string run_dir_;
  std::optional<RunLock> lock_;
};

}  // namespace cairn
