// Makes one call fail, or all from one on, and records the reaction.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "tests/support/serial_queue.h"
#include "tests/support/wrapped_file_system.h"

namespace cairn {

struct Failure {
  int64_t at = 0;  // calls before the one that fails
  StatusKind kind = StatusKind::kIoError;
  bool lasting =
      false;  // the disk is gone from then on; with kNoSpace: full, so that only what needs space fails
  std::string under = {};  // only calls on paths that begin so count, and fail; empty: all
};

class FailingFileSystem final : public WrappedFileSystem {
 public:
  FailingFileSystem(FileSystem& base, const Failure& failure) : WrappedFileSystem(base), failure_(failure) {}

  // The calls come in the same order each time.
  std::unique_ptr<IoQueue> NewQueue(const IoQueueOptions&) override {
    return std::make_unique<SerialQueue>();
  }

  void Heal() { healed_ = true; }
  bool fired() const { return fired_; }
  // The call that failed first.
  const std::string& what() const { return what_; }
  const std::string& path() const { return path_; }
  // True if a reported success depends on it. (`latest` is only a hint, and a removal that fails is not
  // an error.)
  bool must_surface() const { return must_surface_; }
  // A file that was synced although a sync of it had failed.
  const std::string& synced_again() const { return synced_again_; }

 protected:
  Status Do(const FsCall& call, const std::function<Status()>& run) override;

 private:
  bool Fails(const FsCall& call);

  const Failure failure_;
  std::mutex mutex_;
  int64_t calls_ = 0;
  std::atomic<bool> healed_ = false;
  bool fired_ = false;
  bool must_surface_ = false;
  bool in_hint_ = false;  // `latest` is being replaced
  std::string what_, path_, synced_again_;
  std::set<std::string> condemned_;
};

}  // namespace cairn
