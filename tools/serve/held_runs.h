// The runs that this process holds for writing; only on rank 0.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/stopwatch.h"
#include "ckpt/io/directory_room.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/run_record.h"
#include "tools/serve/copy_interval.h"

namespace cairn {

// The part of a patience that remains once the trainer has ended.
inline constexpr int kShortPatience = 10;

// A line on stderr under the program's name.
void ReportLine(const std::string& line);

// Safe from several threads, but for the fields of a Run, which belong to the thread that saves into the run.
class HeldRuns {
 public:
  struct Run {
    RunLock lock;
    RunRecord record;               // of its events; safe from several threads
    int64_t unseen_branch = -1;     // of local steps that this process cannot see (local_branch.h)
    int64_t noted_branch = -1;      // in RUN/local by this process
    CopyInterval copies;            // of its local steps; safe from several threads
    std::vector<RoomLimit> limits;  // before the first save; empty once it was compared with them
    std::set<std::string> left;     // sentences about steps that were not deleted, each reported once

    // The step that was committed last, to the run or its local level; nullopt before the first. Safe from
    // several threads.
    std::optional<BranchedStep> newest();
    void Committed(std::optional<BranchedStep> step);

    Run(FileSystem& fs, const std::string& run_dir, RunLock held, std::optional<BranchedStep> last)
        : lock(std::move(held)), record(fs, run_dir, ReportLine), newest_(std::move(last)) {}

   private:
    std::mutex mutex_;
    std::optional<BranchedStep> newest_;
  };
  // Makes the directory, waits for the lock (a helper of the training before may still finish its save) and
  // says so on stderr, removes leftovers of killed saves, and owns the run. Errors: AlreadyExists if another
  // process holds the run after `patience`, or took its lock as well (RunLock::CheckHeld).
  Status Hold(FileSystem& fs, const std::string& run_dir, const Patience& patience);
  // Keeps the directory of a failed save, where the other ranks read the reason: until all of them have
  // finished the next save, or the next start.
  void KeepFailed(Committer save);
  void RemoveFailed();
  // Gives up the steps on the run's nodes, which led to `why`: a training from here on comes from the run's.
  // `step`: of the nodes, from which it had resumed; -1: from none. Call it while no save runs.
  Status GiveUpLocal(FileSystem& fs, const std::string& run_dir, int64_t step, const std::string& why,
                     const Patience& patience);
  // The training ends: an event of each run that it has saved into. `how`, `why`: of RunEvent.
  void RecordEnd(const std::string& how, const std::string& why);
  // Errors: Aborted if the path now leads to a directory that is not held.
  Result<std::shared_ptr<Run>> At(const std::string& run_dir);

 private:
  std::mutex mutex_;
  // By the path without links: a process waits for its own locks, too.
  std::map<std::string, std::shared_ptr<Run>> runs_;
  std::vector<Committer> failed_;
};

}  // namespace cairn
