// A run directory: its committed steps, its leftovers, and which steps to keep.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/file_system.h"
#include "ckpt/manifest.h"
#include "ckpt/step_reader.h"

namespace cairn {

// Steps with a committed name, ascending. An empty list where the directory does not exist yet.
Result<std::vector<int64_t>> ListSteps(FileSystem& fs, const std::string& run_dir);

// The newest step that opens, walking back past damaged ones; `skipped` is told of each of those. Finds one
// also while a training saves and retires steps.
// Errors: NotFound where there is none.
Result<std::unique_ptr<StepReader>> OpenNewestStep(FileSystem& fs, const std::string& run_dir,
                                                   const std::function<void(const Status&)>& skipped);

// Held by the one training that writes into a run directory. Released with the process, however it ends.
class RunLock {
 public:
  // Errors: AlreadyExists where another process holds it.
  static Result<RunLock> Take(const std::string& run_dir);
  RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RunLock& operator=(RunLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~RunLock();

 private:
  explicit RunLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// Removes what killed savers and prunes left behind: directories marked partial and deleting, and unfinished
// `latest` files; once what they were renamed from is durable. Call with the lock held. A directory without a
// mark is never touched, whatever it lacks.
Status CleanLeftovers(FileSystem& fs, const std::string& run_dir);

struct RetentionPolicy {
  int64_t keep_last = 0;    // the newest K; 0: no rule
  int64_t keep_every = 0;   // steps that N divides
  int64_t keep_tokens = 0;  // the first step at or after each multiple of T consumed tokens
  bool enabled() const { return keep_last > 0 || keep_every > 0 || keep_tokens > 0; }
};

struct StepFacts {
  int64_t step = 0;
  int64_t tokens = 0;
};

// Steps that no rule keeps, ascending. The newest is always kept; a disabled policy retires nothing. Pure.
// `steps` is ascending.
std::vector<int64_t> StepsToRetire(const std::vector<StepFacts>& steps, const RetentionPolicy& policy);

// Removes a committed step, for good and whole.
Status RetireStep(FileSystem& fs, const std::string& run_dir, int64_t step, const std::string& nonce);
// Removes superseded steps.
Status RemoveSuperseded(FileSystem& fs, const std::string& run_dir);

// Retires what the policy does not keep, and superseded steps. Call only once the newest step is committed
// and verified. A step that does not open is not counted and never deleted, nor is one
// that a virtual step uses (step_hold.h).
Status ApplyRetention(FileSystem& fs, const std::string& run_dir, const RetentionPolicy& policy,
                      const std::string& nonce);

// The directory of a CKPT argument: a step directory itself, or a run directory's newest step that opens.
// Errors: NotFound naming the path.
Result<std::unique_ptr<StepReader>> OpenCheckpoint(FileSystem& fs, const std::string& path,
                                                   const std::function<void(const Status&)>& skipped);

}  // namespace cairn
