// Saves a training's state as steps of a run directory, and resumes from the newest good one on any topology.
//
// A save stops the trainer for one memory copy into a snapshot (snapshot.h), or in lazy mode only for the
// rest of that copy before the optimizer continues. Everything else happens in parallel with the training
// (saver.h). A failed save is reported and counted; training continues and the next interval tries again.
// Libtorch-free: state on a GPU comes through `device_copy`.
#pragma once

#include <deque>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/run/run_dir.h"
#include "ckpt/run/run_record.h"
#include "runtime/control/control_plane.h"
#include "runtime/saving/auto_interval.h"
#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/saving/copy_sums.h"
#include "runtime/saving/local_saver.h"
#include "runtime/saving/saver.h"

namespace cairn {

class Checkpointer : public CheckpointHooks {
 public:
  // Collective. Opens the run (training_run.h).
  // Errors: those of the directory, the same on all ranks.
  static Result<std::unique_ptr<Checkpointer>> Create(CheckpointerOptions options,
                                                      std::unique_ptr<ControlPlane> control);
  ~Checkpointer() override;

  Result<std::optional<TrainState>> Resume(StateBuffers& buffers) override;
  Status Prepare(const StateBuffers& buffers) override;
  bool Busy() const override;
  bool SavesAgain() const override;
  Status BeforeOptimizerStep() override;
  Status AfterStep(const TrainState& state, StateBuffers& buffers, bool force, bool busy) override;
  Result<std::string> GiveUp(const TrainState& state) override;
  bool ResumedFromNodes() const override { return origin_.local; }
  Result<std::string> GiveUpLocal(const TrainState& state) override;
  Status Finish() override;

  SaveStats Stats() const override { return stats_; }
  RunRecord& record() { return record_; }

 private:
  // Only on rank 0.
  struct Line {
    std::optional<BranchedStep> newest;  // the last step that was committed, or whose save began
    std::optional<BranchedStep> origin;  // the step that the training's state came from
    int64_t unseen_branch = -1;          // of local steps that this training cannot see (local_branch.h)
  };
  // One snapshot's memory, and its copy of the random state.
  struct Slot {
    std::unique_ptr<Snapshot> snapshot;
    std::string rng_state;
    std::shared_ptr<Save> save;  // in progress; null: free
    Line line_before;            // the save
  };

  Checkpointer(CheckpointerOptions options, std::unique_ptr<ControlPlane> control);
  Status OpenLocal();

  Status Reserve(const StateBuffers& buffers);
  Status CheckSpace();
  void PrintPlan() const;
  Slot& FreeSlot();
  Descent DescentOf(const TrainState& state) const;
  Health HealthAt(const TrainState& state) const;
  Status Condemn(const TrainState& state);
  Status GiveUpAfter(const std::optional<BranchedStep>& commit);
  Result<std::string> NextResume() const;
  void Begin(Slot& slot, const TrainState& state, const StateBuffers& buffers, bool durable);
  void Collect(Slot& slot);  // waits for its save and reports the outcome
  void Report(const Save& save);
  void NoteDurable(const Save& save);
  void NoteFailure(const Save& save);
  void CollectDone();
  void CollectAll();
  std::string RaiseAlarm(const Save& save, std::string why);
  bool lazy() const { return config_.save_mode == "lazy"; }
  bool finds_interval() const { return config_.save_interval == "auto"; }
  Status FindInterval();

  const CheckpointerOptions options_;
  const TrainConfig& config_;
  std::unique_ptr<ControlPlane> control_;
  FileSystem& fs_ = options_.fs;
  std::optional<RunLock> lock_;
  std::string run_;
  std::string nonce_;
  std::string session_;  // of this start, in the health of all its steps
  // The step that was resumed from.
  struct Origin {
    int64_t iteration = -1;  // -1: nothing
    std::string run;
    std::string session;
    bool own = false;    // in --save or --save-local
    bool local = false;  // in --save-local
  } origin_;
  AutoInterval auto_;
  int64_t interval_ = 0;  // steps between saves; below 0: not decided yet
  int64_t saves_ = 0;
  int64_t iteration_ = 0;  // of the last AfterStep
  int64_t again_at_ = 0;   // with --on-save-error warn, after a failed save: the iteration of the next
  SaveStats stats_;
  RunRecord record_;           // on rank 0
  int64_t newest_saved_ = -1;  // iteration of the last save begun
  Line line_;
  std::optional<TrainState> undrained_;  // resumed from a local step that is not in --save
  int64_t last_collected_ = -1;          // the newest durable save with a known outcome:
  Status last_outcome_;
  std::shared_ptr<const std::vector<TensorEntry>> tensors_;
  std::deque<Slot> slots_;
  Slot* copying_ = nullptr;  // its snapshot and sums may still read the trainer's memory
  CopySums copy_sums_;
  std::deque<std::shared_ptr<Save>> drains_;  // from local steps to --save
  std::unique_ptr<PeerFiles> peers_;
  std::optional<LocalPlace> place_;  // nullopt: no local steps
  // Last: they end before the snapshots go, and the one that hands on to the other ends first.
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<LocalSaver> local_saver_;
};

}  // namespace cairn
