// A run directory: its committed steps, its leftovers, and which steps to keep.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/base/stopwatch.h"
#include "ckpt/io/file_system.h"
#include "ckpt/io/lock_file.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/deletion.h"
#include "ckpt/run/run_health.h"

namespace cairn {

class StepReader;
struct Room;
struct RoomLimit;

// Steps with a committed name, ascending. Empty if the directory does not exist yet.
Result<std::vector<int64_t>> ListSteps(FileSystem& fs, const std::string& run_dir);

// Called with the reason for each thing that is left in place or skipped.
using Complain = std::function<void(const Status&)>;

// The step that RUN/latest names; nullopt if it names none.
std::optional<int64_t> LatestOf(FileSystem& fs, const std::string& run_dir);

// The newest step and those that it descends from, ascending (branch.h). A step whose manifest cannot be read
// counts, since it is not known to be superseded.
Result<std::vector<int64_t>> ListCurrentSteps(FileSystem& fs, const std::string& run_dir);

// The newest current step that opens, walking back past damaged ones; `skipped` is called for each of those,
// and for each other step that might be meant. Safe while a training saves and retires steps. Errors:
// NotFound if no step opens.
Result<std::unique_ptr<StepReader>> OpenNewestStep(FileSystem& fs, const std::string& run_dir,
                                                   const Complain& skipped);

// For a training, before its first save: whether the directory has room for a step and one that is kept
// beside it while it is written, which may be there already. `step`: the files of one. `limits`: LimitsAt()
// the directory, before anything of a step was written. Errors: those of CheckRoom.
Status CheckRoomForSteps(FileSystem& fs, const std::string& run_dir, const Room& step,
                         const std::vector<RoomLimit>& limits);

// How a process waits for a lock.
struct LockWait {
  Patience patience = [] { return std::chrono::seconds(0); };
  // Called with the holder of the lock and the time left to wait, after a second and then every half minute.
  std::function<void(const Status& held, std::chrono::seconds more)> waiting = [](const auto&, auto) {};
};

// Held by the one process that writes into a run directory: a training, or a command that makes a step.
// Released with the process, however it ends.
class RunLock {
 public:
  // Errors: AlreadyExists if another process holds it, naming that process if the lock file does; those
  // of CheckOutsideSteps (partial_dir.h).
  static Result<RunLock> Take(FileSystem& fs, const std::string& run_dir);
  // For a writer of many steps: makes the directory, waits for the lock, and removes leftovers.
  static Result<RunLock> Hold(FileSystem& fs, const std::string& run_dir, const Complain& left,
                              const LockWait& wait = {});
  // OK if the directory at the path is still the one that was locked. Errors: AlreadyExists if it was
  // renamed, removed or replaced.
  Status CheckPlace() const;
  // The same, and the lock file still names this process. Errors: AlreadyExists also if another took the lock
  // as well, which happens if locks exclude only processes of one host.
  Status CheckHeld() const;

 private:
  explicit RunLock(LockFile file) : file_(std::move(file)) {}
  LockFile file_;
};

// Removes the leftovers of killed savers and prunes: directories named partial or deleting that have their
// mark (dir_mark.h), and unfinished `latest` files, after their renames are durable. Call with the lock held.
// `left` is called for what stays: a directory with other files, and one without its mark, whatever its name.
Status CleanLeftovers(
    FileSystem& fs, const std::string& run_dir, const Complain& left = [](const Status&) {});

struct RetentionPolicy {
  int64_t keep_last = 0;    // the newest K healthy ones; 0: no rule
  int64_t keep_every = 0;   // steps that N divides
  int64_t keep_tokens = 0;  // the first step at or after each multiple of T consumed tokens
  int64_t keep_epochs = 0;  // the first step at or after each E-th pass over the training data
  int64_t keep_best = 0;    // the N lowest validation losses, of steps that were evaluated as they were saved
  std::string run = {};     // retire steps of this run alone; empty: of any run that the newest descends from
  bool enabled() const {
    return keep_last > 0 || keep_every > 0 || keep_tokens > 0 || keep_epochs > 0 || keep_best > 0;
  }
};

// Steps that no rule keeps, ascending. A disabled policy retires nothing. Pure.
//
// The rules count healthy steps only; without one nothing is retired. Two are kept whatever the rules say:
// the newest healthy step, and while it is the newest of all, the healthy one before it. Only the iteration
// after a step shows whether its weights are good, so the newest step is not known to be. Unhealthy steps are
// evidence: they stay until there is a newer healthy step. Superseded steps (branch.h) count for no rule and
// are deleted, but a branch must have two healthy steps of its own before a step of an earlier branch is:
// until then the step that the training came from is kept, and so are those that it gave up.
std::vector<int64_t> StepsToRetire(const RunSteps& run, const RetentionPolicy& policy);

// Deletes a committed or superseded step (its name in run_dir) because a newer healthy one stays. Errors:
// those of DeleteStep, and NotFound if there is no such successor; then nothing has changed.
Status RetireStep(FileSystem& fs, const std::string& run_dir, const std::string& name,
                  const std::string& nonce, Shards shards = Shards::kHere, const std::string& run = {});
// Retires the steps that were saved again.
Status RemoveSuperseded(FileSystem& fs, const std::string& run_dir, const std::string& nonce, Shards shards,
                        const Complain& left);

// Retires the steps that the policy does not keep, and superseded ones. Call only once the newest step is
// committed and verified. A step that does not open is not counted and never deleted, nor is one that a
// virtual step uses (step_hold.h). `left` is called for steps that could not be deleted, once for all steps
// of other runs.
Status ApplyRetention(
    FileSystem& fs, const std::string& run_dir, const RetentionPolicy& policy, const std::string& nonce,
    const Complain& left = [](const Status&) {});

// The directory of a CKPT argument: a step directory itself, or a run directory's newest step that opens.
// Errors: NotFound naming the path.
Result<std::unique_ptr<StepReader>> OpenCheckpoint(FileSystem& fs, const std::string& path,
                                                   const Complain& skipped);

}  // namespace cairn
