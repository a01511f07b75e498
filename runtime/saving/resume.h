// Loads the newest step that is healthy (ckpt/run/health.h) and whole into a training's memory, on any
// topology.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/job/resume_steps.h"
#include "ckpt/run/branch.h"
#include "ckpt/run/run_record.h"
#include "ckpt/step/step_reader.h"
#include "runtime/control/control_plane.h"
#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/saving/checkpointer_options.h"

namespace cairn {

struct Resumed {
  TrainState state;                  // with weights_only: of a new training
  std::vector<std::string> missing;  // fields that a step of another program does not have
  bool weights_only = false;         // --finetune
  bool from_local = false;
  bool lost_local = false;    // a newer local step could not be loaded
  bool durable = true;        // false: a local step that is not in --save
  bool continues = false;     // the step is in --save, or is a local step of this run
  BranchedStep commit;        // the step itself
  int64_t save_interval = 0;  // decided by --save-interval auto; 0: none
};

class Resumer {
 public:
  // All but `run` must outlive it. `run`: the identity of --save; `local`: the steps of that run, surveyed,
  // or null; `record` gets the start, or is null.
  Resumer(const CheckpointerOptions& options, std::string run, LocalSteps* local, ControlPlane& control,
          RunRecord* record = nullptr)
      : options_(options),
        config_(options.config),
        run_(std::move(run)),
        local_(local),
        control_(control),
        record_(record) {}

  // Collective. nullopt if there is no step yet. See CheckpointHooks::Resume.
  Result<std::optional<Resumed>> Run(StateBuffers& buffers);
  // After Run, on rank 0: the step that was committed last to --save or the local level.
  const std::optional<BranchedStep>& newest() const { return newest_; }
  // Likewise: for AfterLocalBranch().
  int64_t unseen_branch() const { return unseen_branch_; }

 private:
  struct Candidate : ResumeStep {  // an unhealthy one is tried only with --load-unhealthy
    bool weights_only = false;     // of the directory
  };

  Result<std::vector<Candidate>> ShareCandidates();
  Result<std::vector<Candidate>> Candidates();
  Status AddSteps(const std::string& run_dir, std::vector<Candidate>& candidates);
  Status AddLoad(std::vector<Candidate>& candidates);
  Status LeaveOutUnhealthy(std::vector<Candidate>& candidates) const;
  Status StepsAreGone() const;
  bool IsOfSave(const Candidate& candidate) const;
  std::string PlaceOf(const std::vector<Candidate>& candidates) const;
  void Record(const std::vector<std::string>& hosts, const Candidate* from, int64_t iteration) const;
  void ReportMissingNewest(const Resumed& resumed) const;
  void Report(const Candidate& candidate, const Resumed& resumed) const;
  Status Load(const Candidate& candidate, StateBuffers& buffers, Resumed& resumed);
  Status LoadStep(FileSystem& fs, const std::string& directory, StateBuffers& buffers, Resumed& resumed);

  const CheckpointerOptions& options_;
  const TrainConfig& config_;
  const std::string run_;
  LocalSteps* const local_;
  ControlPlane& control_;
  RunRecord* const record_;
  FileSystem& fs_ = options_.fs;
  std::optional<BranchedStep> newest_;
  int64_t unseen_branch_ = -1;
};

}  // namespace cairn
