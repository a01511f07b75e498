// The processes of one launch that share an archive run: ranks of mpirun or srun, tasks of a Slurm array, or
// both.
//
// They share the store's lock; a run of another launch is refused. Each takes the next source that no process
// of the launch has taken, its own share first. A slow or killed process therefore does not delay the others:
// they take its sources. A taken source is a locked file in STORE/.claims, which finally contains the result.
// Tasks of an array need not run at the same time.
//
// Only a process that holds the lock exclusively, the first to join or the last to leave, cleans the store,
// writes the ledger (SQLite's WAL must not be shared between hosts), prunes and reports.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/io/lock_file.h"
#include "ckpt/run/rank_team.h"
#include "tools/archive/store/store.h"

namespace cairn {

// The team of this process, from SLURM_ARRAY_* and RankTeam's variables. Errors: InvalidArgument for an array
// that is not a plain range, or a launcher that does not name its job.
Result<RankTeam> ArchiveTeam(const std::function<const char*(const char*)>& get_env = std::getenv);

// The result of one source, or of all together.
struct ShareResult {
  uint64_t stored_bytes = 0;  // of the source
  uint64_t stored_members = 0;
  int64_t started_unix_seconds = 0;
  int64_t finished_unix_seconds = 0;
  std::vector<std::string> failures = {};  // one line each
};

class TeamStore {
 public:
  // Takes the store's lock together with the others; the first process runs `prepare`. A team of one holds it
  // exclusively. Errors: AlreadyExists if another launch, or a verb that needs it exclusively, holds it;
  // those of `prepare`.
  static Result<TeamStore> Join(const Store& store, const RankTeam& team,
                                const std::function<Status()>& prepare);

  // The order in which this process looks at `count` sources.
  std::vector<size_t> Order(size_t count) const;

  // Does `work` for the source `key` unless another process of the launch does or has done it. Returns
  // whether this process did it. Errors: those of the disk, not those of the work; AlreadyExists if this
  // process is the only one and another host took the store's lock, too (its locks do not exclude other
  // hosts).
  Result<bool> Share(const std::string& key, const std::function<ShareResult()>& work);

  // Does `work`, which changes a file that all share, while no other process of the launch does such work.
  Status Alone(const std::function<Status()>& work);

  // Does `work`, which takes room in the store: at the same time as others of the launch if `all_fit` says
  // that there is room for all of them, otherwise while no other does.
  Status TakingRoom(const std::function<bool()>& all_fit, const std::function<Status()>& work);
  size_t size() const { return static_cast<size_t>(team_.size); }

  // True if all others have left; then this process keeps an exclusive lock until the end. Errors: as
  // Share().
  Result<bool> IsLast();
  // The results of all processes, by source. Requires IsLast(). Keeps them in one file for tasks that start
  // later.
  Result<std::vector<ShareResult>> Collect();

 private:
  TeamStore(Store store, RankTeam team, LockFile lock)
      : store_(std::move(store)), team_(std::move(team)), lock_(std::move(lock)) {
    lock_.file().Announce();
  }
  // Opens the claim, or the lock, of this name.
  Result<FileLock> OpenClaim(std::string_view name) const;

  const Store store_;
  const RankTeam team_;
  LockFile lock_;  // of the store
};

}  // namespace cairn
