// One save of one rank: its shard, its files for the rank that commits, and the commit.
//
// Ranks meet in the partial directory (ckpt/run/rendezvous.h), which all of them can see; their trainers may
// also exchange news by the job's own store. Rank 0 opens the room once it holds the run. Each rank then
// writes its shard and meanwhile leaves its values as files of the team. Rank 0 merges them, writes the
// values that are in no shard into two further shards, and publishes. A single rank exchanges no files: it
// writes those two shards in addition to the first one. If a rank fails, or its trainer ends before its state
// was copied, the save ends for all, naming that rank; a silent rank ends it at the deadline.
//
// With a local level (local_level.h) the ranks first save on their nodes, and exchange everything over TCP.
// The step is then copied to the run, if it is to go there, while the next one is saved. If it cannot be
// saved on the nodes, it goes to the run as without them.
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

#include "ckpt/job/copies.h"
#include "ckpt/job/job_save.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/rendezvous.h"
#include "tools/serve/held_runs.h"
#include "tools/serve/local_level.h"
#include "tools/serve/origins.h"
#include "tools/serve/packet.h"
#include "tools/serve/save_plan.h"
#include "tools/serve/state_dict.h"

namespace cairn {

// The start of a training, which its trainer reports with the first save into a run.
struct TrainingStartTold {
  double time = 0;          // seconds since 1970, when it had loaded what it resumes from
  double seconds = 0;       // from its launch until then
  int64_t local_step = -1;  // that it resumed from
  bool again = false;       // the run's events have it, by a helper that died
};

struct SaveRequest {
  std::string run_dir;
  int64_t step = 0;
  std::string nonce;  // hex digits, the same on all ranks, different for each save
  int rank = 0;
  int world = 1;
  std::chrono::seconds patience{600};      // with ranks that make no progress
  std::optional<TrainingStartTold> start;  // nullopt: it is not for the run's events

  // {"run", "step", "nonce", "rank", "world", "deadline"?, "start"?}. Errors: Corrupt.
  static Result<SaveRequest> Parse(const nlohmann::json& said);
};

struct SaveOptions {
  bool compress = false;
  bool require_space = false;      // the first save fails if it has no room; otherwise this is a warning
  bool copies_may_differ = false;  // the step is saved nevertheless, and its history says so
  RetentionPolicy retention;       // applied once the step is committed; its shards are read back before
  Model model = {};
  nlohmann::json state = nlohmann::json::object();  // in addition to the iteration
  uint64_t when = 0;                                // the training handed its tensors over (Origins::Now)
};

// What a rank has besides its shard. groups: packets of state_dict.h. copies: sums, as in copies.h; `late`:
// they come later, and one byte more than the plan's memory then counts as filled.
struct SaveValues {
  std::vector<Packet> groups;
  bool late = false;
  nlohmann::json copies = nlohmann::json::object();
};
// Where the filling of a save ends: at the end of the plan's memory, or one byte later with the sums of
// copies.
uint64_t EndOf(const SavePlan& plan, const SaveValues& values);

class StepSave : private SaveMessages {
 public:
  // After `trainer_ended` the save continues, but its patience with silent ranks is short: the restarted
  // training waits for the run.
  // `level`: where the step is saved first; null: only in the run.
  StepSave(FileSystem& fs, HeldRuns& runs, Origins& origins, EqualCopies& equal, SaveRequest request,
           const std::atomic<bool>& trainer_ended, std::shared_ptr<LocalLevel> level = nullptr);

  // Rank 0 holds the run, and opens the room if the step is saved only there. Other ranks do nothing.
  Status Begin();
  // With a level: saves the step on the nodes; as WriteShard and Finish. Returns when it is committed there.
  Status SaveLocally(SavePlan& plan, const SaveValues& values, const SaveOptions& options,
                     const std::function<Status(uint64_t end)>& wait_for);
  // After SaveLocally: copies the step to the run. Returns when it is committed.
  Status CopyToRun(const SavePlan& plan, const SaveOptions& options);
  // After SaveLocally failed on all ranks: rank 0 opens the room, and the step is saved as without a level.
  Status BeginInRun();
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

  int64_t step() const { return request_.step; }
  const std::string& nonce() const { return request_.nonce; }
  // That copies differ, on rank 0; empty: they do not.
  const std::string& alarm() const { return alarm_; }
  // Where the step was committed last.
  const std::string& step_dir() const { return local_step_.empty() ? committer_.step_dir() : local_step_; }

 private:
  bool leads() const override { return rendezvous_.team().leads(); }
  bool InPartial() const override { return true; }
  Result<std::vector<std::string>> Gather(const Result<std::string>& blob) override;
  Status Tell(const Status& outcome) override;

  Status EnterRoom(const SavePlan& plan, const SaveOptions& options);
  void AbandonLocally(const Status& why);
  Status CheckSpace(const SavePlan& plan, const SaveOptions& options);
  bool IsInPlace(const SavePlan& plan, const SaveOptions& options) const;
  Status WriteOwnShard(SavePlan& plan, const SaveOptions& options,
                       const std::function<Status(uint64_t end)>& wait_for);
  Status HandleValues(SavePlan& plan, const SaveValues& values);
  Status LeaveValues(const SavePlan& plan, const SaveValues& values);
  Result<std::string> LeaveContent(std::string_view kind, std::string_view bytes);
  Result<StepSeal> Seal(SavePlan& plan, const SaveOptions& options, const std::optional<BranchedStep>& newest,
                        std::vector<SavePart>& parts);
  Status MergeParts(const SavePlan& plan, const SaveOptions& options, const std::vector<SavePart>& parts);
  Status CompareCopies(const SaveOptions& options, const std::vector<nlohmann::json>& left);
  Status RecordAlarm(const std::string& why);
  Status WriteContents(SavePlan& plan);
  StepInfo InfoOf(const SaveOptions& options) const;
  void RecordStart(const std::vector<SavePart>& parts, const std::optional<BranchedStep>& origin);
  bool IsCommitted() const;
  TeamNews News() const;
  Result<std::string> ReadContent(int rank, const nlohmann::json& left, const std::string& name) const;
  // What this attempt has gathered.
  struct Attempt {
    std::string directory;                        // that the shards are written into
    bool local = false;                           // on the nodes
    std::map<std::string, std::string> contents;  // of a local one: by name, in place of files of the team
    SavePart part;         // its note is a packet that names the contents that this rank wrote
    StateDict state_dict;  // of all ranks; these on rank 0
    std::vector<std::string> differences;      // between copies, likewise
    std::vector<ShardReceipt> value_receipts;  // of the two shards of values
  };

  FileSystem& fs_;
  HeldRuns& runs_;
  Origins& origins_;
  EqualCopies& equal_;
  const SaveRequest request_;
  const Patience patience_;
  mutable std::mutex news_mutex_;
  TeamNews news_;
  Committer committer_;  // of all ranks; only rank 0 commits
  const Rendezvous rendezvous_;
  const std::shared_ptr<LocalLevel> level_;
  bool entered_ = false;  // the rendezvous; its directory may be gone since
  StepIdentity identity_;
  std::optional<JobSave> job_;  // since EnterRoom
  Attempt now_;
  std::string local_step_;  // since SaveLocally, until the run has the step
  StepSeal sealed_;         // of the local step, on rank 0
  BranchedStep commit_;     // since Seal, on rank 0
  std::string alarm_;       // likewise
};

}  // namespace cairn
