// Makes a step of finished shards, or leaves everything as it was. The only code that makes RUN/step-N.
//
// The step is written as RUN/step-N.partial-NONCE, by one process or by several that share the nonce. One of
// them, which holds the run, seals and publishes it.
//
// The order of a commit (FORMAT.md, "Commit"):
//
//   1. The writers write and sync the shards, and report.
//   2. Scratch files go: those of the ranks' rendezvous, records of work.
//   3. The files beside the tensors are written, and listed in the manifest.
//   4. The index and then the manifest are written: Seal().
//   5. Only in a local save, every rank writes its parity, of shards that the manifest lists.
//   6. Who reads the step back does so now: one that is found damaged never becomes the newest.
//   7. The partial directory is synced, and renamed: it is the step. The run directory is synced. After that
//      everything is durable; `latest` follows as a hint: Publish().
//
// Commit() does 2 to 7. A local save, whose ranks must all have done 5, calls Seal() and Publish() itself.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/run/run_dir.h"
#include "ckpt/run/tokenizer_files.h"
#include "ckpt/step/partial_dir.h"
#include "ckpt/step/seal.h"

namespace cairn {

struct CommitOptions {
  const RunLock* lock = nullptr;  // of a run that the caller holds; Committer::Create() takes its own
  std::function<bool(std::string_view name)> scratch = {};  // names of files that are not of the step
  std::span<const BesideFile> beside = {};
  bool read_back = false;  // index and manifest: they must be what was written
};

class Committer {
 public:
  // One step of a run that the caller holds for longer, or that another process of the same job holds. Does
  // nothing yet.
  Committer(FileSystem& fs, std::string run_dir, int64_t step, std::string nonce);

  struct NewStep {
    std::string run_dir;  // is made if it is missing
    BranchedStep commit;  // must be of the run that has steps there
    std::string nonce = NewNonce();
    uint64_t need_bytes = 0;  // of free space
    bool resume = false;      // adopt the partial directory that a killed run with this nonce left
    std::vector<std::string> beside = {};  // names of the files beside the tensors
  };
  // For a command that makes one step: refuses an existing step, checks the place, takes the run's lock,
  // removes leftovers (not with `resume`: others may want theirs), checks the free space, makes the partial
  // directory. If `resume` finds one, it removes the seal and keeps the other files.
  // Unless published or kept, what it wrote goes with this object, and so do the directories that were made
  // for it and are empty then. Errors: AlreadyExists if the step is there or another process writes into the
  // run; InvalidArgument inside of a committed step, and if another run has steps there; NoSpace.
  static Result<Committer> Create(FileSystem& fs, const NewStep& what);

  const std::string& partial() const { return partial_path_; }
  const std::string& step_dir() const { return step_dir_; }

  // Errors: AlreadyExists if the step exists.
  Status CheckNew() const;
  // All processes that write shards may call it. `beside`: names of the files beside the tensors.
  Status MakePartial(const std::vector<std::string>& beside = {});
  // Removes the files of the partial directory that `chosen` accepts. Tries all; returns the first error.
  Status RemoveFiles(const std::function<bool(std::string_view name)>& chosen) const;
  // Makes the step of durable shards, in the order above. Adds the files beside them to the manifest in
  // `seal`. Errors: those of Publish(); Corrupt if something read back is not what was written; the disk's.
  Status Commit(StepSeal& seal, const CommitOptions& options = {});
  // Writes index and manifest. Every shard and every file beside them must be durable.
  Status Seal(const StepSeal& seal) { return WriteSeal(*fs_, partial_path_, seal); }
  // Gives the sealed directory its final name. An existing step-N (a trainer went back) is kept as
  // step-N.superseded-NONCE: the two are exchanged, or renamed one after the other if the file system cannot
  // exchange names. A step of Create() never takes the place of one that came meanwhile. Errors:
  // AlreadyExists if one did, if the run directory was replaced, or if another process took its lock as well;
  // those of the disk.
  Status Publish();
  // Removes the partial directory after a failure, as far as it goes. `beside` as MakePartial() had it.
  void Abandon(const std::vector<std::string>& beside = {});
  // Leaves a partial directory of Create() for a later run to adopt.
  void Keep();

 private:
  Status ReadBack(const StepSeal& seal) const;
  bool IsNewest() const;

  FileSystem* fs_;
  std::string run_dir_;
  int64_t step_;
  std::string nonce_;
  std::string partial_path_;
  std::string step_dir_;
  const RunLock* lock_ = nullptr;  // which Publish() checks
  // From Create(), destroyed in the opposite order: the lock is held until the directories are gone.
  std::unique_ptr<RunLock> own_lock_;
  std::optional<PartialDir> run_dir_made_;
  std::optional<PartialDir> partial_dir_;
};

// The contents of a marked directory that is the run directory of one step: of one that a command makes there
// and takes out of it, or reads and removes. `beside`: names of the files beside the tensors.
MarkedContents RunOfOneStep(int64_t step, const std::vector<std::string>& beside);

}  // namespace cairn
