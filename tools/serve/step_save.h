// One save of one rank: its shard, its files for the rank that commits, and the commit.
//
// Ranks meet in the partial directory (ckpt/run/rendezvous.h), which all of them can see; their trainers may
// also exchange news by the job's own store. Rank 0 opens the room once it holds the run. Each rank then
// writes its shard and meanwhile leaves its values as files of the team. Rank 0 merges them, writes the
// values that are in no shard into two further shards, and publishes. A single rank exchanges no files: it
// writes those two shards in addition to the first one. If a rank fails, or its trainer ends before its state
// was copied, the save ends for all, naming that rank; a silent rank ends it at the deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/io/directory_room.h"
#include "ckpt/job/job_save.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/rendezvous.h"
#include "ckpt/run/run_dir.h"
#include "tools/serve/copies.h"
#include "tools/serve/origins.h"
#include "tools/serve/packet.h"
#include "tools/serve/save_plan.h"
#include "tools/serve/state_dict.h"

namespace cairn {

struct SaveRequest {
  std::string run_dir;
  int64_t step = 0;
  std::string nonce;  // hex digits, the same on all ranks, different for each save
  int rank = 0;
  int world = 1;
  std::chrono::seconds patience{600};  // with ranks that make no progress

  // {"run", "step", "nonce", "rank", "world", "deadline"?}. Errors: Corrupt.
  static Result<SaveRequest> Parse(const nlohmann::json& said);
};

// The runs that this process holds for writing; only on rank 0.
class HeldRuns {
 public:
  struct Run {
    RunLock lock;
    std::optional<BranchedStep> newest;  // the step that was committed last; nullopt before the first
    std::vector<RoomLimit> limits;       // before the first save; empty once it was compared with them
    std::set<std::string> left;          // sentences about steps that were not deleted, each reported once
  };
  // Makes the directory, waits for the lock (a helper of the training before may still finish its save) and
  // says so on stderr, removes leftovers of killed saves, and owns the run. Errors: AlreadyExists if another
  // process holds the run after `patience`, or took its lock as well (RunLock::CheckHeld).
  Status Hold(FileSystem& fs, const std::string& run_dir, const Patience& patience);
  // Keeps the directory of a failed save, where the other ranks read the reason: until all of them have
  // finished the next save, or the next start.
  void KeepFailed(Committer save) { failed_.push_back(std::move(save)); }
  void RemoveFailed();
  // Errors: Aborted if the path now leads to a directory that is not held.
  Result<Run*> At(const std::string& run_dir);

 private:
  std::map<std::string, Run> runs_;  // by the path without links: a process waits for its own locks, too
  std::vector<Committer> failed_;
};

struct SaveOptions {
  bool compress = false;
  bool require_space = false;  // the first save fails if it has no room; otherwise this is a warning
  RetentionPolicy retention;   // applied once the step is committed; its shards are read back before
  Model model = {};
  nlohmann::json state = nlohmann::json::object();  // in addition to the iteration
  uint64_t when = 0;                                // the training handed its tensors over (Origins::Now)
};

// What a rank has besides its shard. groups: packets of state_dict.h. copies: digests, as in copies.h.
struct SaveValues {
  std::vector<Packet> groups;
  nlohmann::json copies = nlohmann::json::object();
};

class StepSave : private SaveMessages {
 public:
  // After `trainer_ended` the save continues, but its patience with silent ranks is short: the restarted
  // training waits for the run.
  StepSave(FileSystem& fs, HeldRuns& runs, Origins& origins, SaveRequest request,
           const std::atomic<bool>& trainer_ended);

  // Rank 0 holds the run and opens the room. Other ranks do nothing.
  Status Begin();
  // Writes the shard from the plan's memory; `wait_for` (ImageWriteOptions) waits until a part is filled. The
  // memory may change when this returns.
  Status WriteShard(SavePlan& plan, const SaveValues& values, const SaveOptions& options,
                    const std::function<Status(uint64_t end)>& wait_for);
  // Returns when the step is committed.
  Status Finish(SavePlan& plan, const SaveOptions& options);
  // After Finish: rank 0 removes the steps that the options do not keep. Returns a sentence for each that
  // could not be removed, if it is the first save that leaves it; the save is still good.
  std::vector<std::string> RetireSteps() const;
  // Abandons the save, and tells all ranks why. Waits for the room if this rank has not entered it.
  void Abandon(const Status& why);
  bool alone() const { return rendezvous_.team().alone(); }
  // What the trainer received by the job's store: {"opened": true}, {"saved": true} or {"failed": why}. Any
  // thread may call it.
  void Hear(const nlohmann::json& news);

  const std::string& step_dir() const { return committer_.step_dir(); }

 private:
  bool leads() const override { return rendezvous_.team().leads(); }
  bool InPartial() const override { return true; }
  Result<std::vector<std::string>> Gather(const Result<std::string>& blob) override;
  Status Tell(const Status& outcome) override;

  Status CheckSpace(const SavePlan& plan, const SaveOptions& options);
  Status WriteOwnShard(SavePlan& plan, const SaveOptions& options,
                       const std::function<Status(uint64_t end)>& wait_for);
  Status HandleValues(SavePlan& plan, const SaveValues& values);
  Status LeaveValues(const SavePlan& plan, const SaveValues& values);
  Result<std::string> LeaveContent(std::string_view kind, std::string_view bytes);
  Result<StepSeal> Seal(SavePlan& plan, const SaveOptions& options, const std::optional<BranchedStep>& newest,
                        std::vector<SavePart>& parts);
  Status MergeParts(const SavePlan& plan, const std::vector<SavePart>& parts);
  Status WriteContents(SavePlan& plan);
  StepInfo InfoOf(const SaveOptions& options) const;
  bool IsCommitted() const;
  TeamNews News() const;
  Result<std::string> ReadTeamFile(const std::string& name) const;

  FileSystem& fs_;
  HeldRuns& runs_;
  Origins& origins_;
  const SaveRequest request_;
  const Patience patience_;
  mutable std::mutex news_mutex_;
  TeamNews news_;
  Committer committer_;  // of all ranks; only rank 0 commits
  const Rendezvous rendezvous_;
  bool entered_ = false;  // the rendezvous; its directory may be gone since
  StepIdentity identity_;
  std::optional<JobSave> job_;  // since WriteShard
  SavePart part_;               // its note is a packet that names the contents that this rank wrote
  // Rank 0:
  BranchedStep commit_;                       // since Seal
  StateDict state_dict_;                      // of all ranks
  Copies copies_;                             // of all ranks
  std::vector<ShardReceipt> value_receipts_;  // of the two shards of values
};

}  // namespace cairn
