// One step that the ranks of a job save together: the phases after the shards are written, and their order.
//
//   read back   every rank reads its shard, if older steps are deleted after that
//   gather      rank 0 gets every rank's part, or the failure of one
//   commit      rank 0 seals the step and gives it its name (committer.h)
//   tell        every rank learns the outcome
//   retire      rank 0 deletes the steps that the policy does not keep
//
// A failure of any rank fails the save on all of them. A rank that has failed still takes part, because the
// others wait for it. A trainer of `cairn train` and a helper of cairn.torch both save this way; they differ
// in how they write their shards, and in the messages.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/job/job_ranks.h"
#include "ckpt/run/committer.h"
#include "ckpt/step/shard_writer.h"

namespace cairn {

// A run directory that rank 0 writes into.
struct HeldRun {
  RunLock lock;
  std::string run;  // its identity
};
// Makes the directory, waits for its lock, removes leftovers of killed saves, and owns the run
// (run_identity.h). `say`: what a user should know. Errors: those of RunLock::Hold and OwnRun.
Result<HeldRun> HoldRun(FileSystem& fs, const std::string& run_dir, const LockWait& wait,
                        const std::function<void(const std::string& line)>& say);

// The part of one rank.
struct SavePart {
  std::optional<ShardReceipt> receipt;  // nullopt: it has no shard
  std::string note;                     // the caller's own
};

// How the ranks of a save exchange its few messages.
class SaveMessages {
 public:
  virtual ~SaveMessages() = default;
  virtual bool leads() const = 0;
  // True if they are files of the partial directory, which must stay after a failure until all have read it.
  virtual bool InPartial() const = 0;
  // Leaves this rank's blob, or why it has none, for rank 0, which gets all by rank; the others get none.
  // Errors: the failure of a rank, which it names.
  virtual Result<std::vector<std::string>> Gather(const Result<std::string>& blob) = 0;
  // Rank 0's outcome, on every rank.
  virtual Status Tell(const Status& outcome) = 0;
};

// Those of a job whose ranks exchange messages anyway.
class RankSaveMessages final : public SaveMessages {
 public:
  explicit RankSaveMessages(JobRanks& ranks) : ranks_(ranks) {}
  bool leads() const override { return ranks_.rank() == 0; }
  bool InPartial() const override { return false; }
  Result<std::vector<std::string>> Gather(const Result<std::string>& blob) override;
  Status Tell(const Status& outcome) override;

 private:
  JobRanks& ranks_;
};

// All parts by rank on rank 0; elsewhere none. Errors: those of SaveMessages::Gather, and Corrupt.
Result<std::vector<SavePart>> GatherParts(SaveMessages& messages, const Result<SavePart>& part);

class JobSave {
 public:
  struct Options {
    const RunLock* lock = nullptr;                            // of the run, on rank 0
    std::function<bool(std::string_view name)> scratch = {};  // as in CommitOptions
    std::span<const BesideFile> beside = {};
    RetentionPolicy retention = {};
  };
  // Makes the seal of all parts; rank 0 calls it. It may add shards to the step (ReadBack).
  using Sealer = std::function<Result<StepSeal>(std::vector<SavePart>& parts)>;

  // Saves step `step` of a run that rank 0 holds. All ranks have the same nonce. Does nothing yet.
  JobSave(FileSystem& fs, SaveMessages& messages, std::string run_dir, int64_t step, std::string nonce,
          Options options);

  // Where every rank writes its shard.
  const std::string& partial() const { return committer_.partial(); }
  Status MakePartial() { return committer_.MakePartial(NamesBeside()); }
  // OK unless older steps are deleted after this save, and the shard is not as it was written.
  Status ReadBack(const ShardReceipt& receipt, const StepIdentity& identity) const;
  // The phases up to tell, on all ranks. `part`: this rank's, or why it has none. OK: the step is durable.
  // After a failure rank 0 has abandoned the step, unless the messages need the directory.
  Status Commit(Result<SavePart> part, const StepIdentity& identity, const Sealer& seal);
  // The last phase. `left` is called for what could not be deleted; the step is still good.
  void Retire(const StepIdentity& identity, const Complain& left) const;
  // On rank 0.
  void Abandon() { committer_.Abandon(NamesBeside()); }

 private:
  std::vector<std::string> NamesBeside() const;

  FileSystem& fs_;
  SaveMessages& messages_;
  const std::string run_dir_;
  const std::string nonce_;
  const Options options_;
  Committer committer_;  // of all ranks; only rank 0 commits
};

}  // namespace cairn
