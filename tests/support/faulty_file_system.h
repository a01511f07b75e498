// A file system that stops working: after `budget` operations that change or read it, everything fails, as
// for a process that was killed or a disk that disappeared. Earlier operations keep their effect.
#pragma once

#include <atomic>

#include "tests/support/wrapped_file_system.h"

namespace cairn {

class FaultyFileSystem final : public WrappedFileSystem {
 public:
  using WrappedFileSystem::WrappedFileSystem;

  // Operations from now on until failure; negative: never.
  void SetBudget(int64_t budget) { budget_ = budget < 0 ? INT64_MAX : budget; }
  int64_t operations() const { return operations_; }
  void SetError(StatusKind kind) { kind_ = kind; }

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override {
    using Kind = FsCall::Kind;
    if (call.kind == Kind::kStat || call.kind == Kind::kList || call.kind == Kind::kFreeBytes) return run();
    const int64_t index = operations_++;
    if (index < budget_) return run();
    // The operation that fails may have done half its work.
    if (call.kind == Kind::kWrite && index == budget_ && call.bytes.size() >= 2 * kPageBytes)
      (void)call.file->WriteAt(call.offset, call.bytes.first(kPageBytes));
    return {kind_, fmt::format("{}: injected fault", call.path)};
  }

 private:
  std::atomic<int64_t> operations_ = 0;
  std::atomic<int64_t> budget_ = INT64_MAX;
  StatusKind kind_ = StatusKind::kIoError;
};

}  // namespace cairn
