// Loads the newest step that is healthy (ckpt/run/health.h) and whole into a training's memory, on any
// topology.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/run/branch.h"
#include "ckpt/step/step_reader.h"
#include "runtime/control/control_plane.h"
#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/saving/checkpointer_options.h"
#include "runtime/saving/local_steps.h"

namespace cairn {

struct Resumed {
  TrainState state;                  // with weights_only: of a new training
  std::vector<std::string> missing;  // fields that a step of another program does not have
  bool weights_only = false;         // --finetune
  bool from_local = false;
  bool durable = true;        // false: a local step that is not in save_dir
  bool continues = false;     // the step is in save_dir, or is a local step of this run
  std::string step_run;       // the run that saved it
  int64_t save_interval = 0;  // found by --save-interval auto; 0: none
};

class Resumer {
 public:
  // All but `run` must outlive it. `run`: the identity of save_dir; `local`: the steps of that run, surveyed,
  // or null.
  Resumer(const CheckpointerOptions& options, std::string run, LocalSteps* local, ControlPlane& control)
      : options_(options), run_(std::move(run)), local_(local), control_(control) {}

  // Collective. nullopt if there is no step yet. See CheckpointHooks::Resume.
  Result<std::optional<Resumed>> Run(StateBuffers& buffers);
  // After Run, on rank 0: the step that was committed last to save_dir or the local level.
  const std::optional<BranchedStep>& newest() const { return newest_; }

 private:
  struct Candidate {
    int64_t local_step = -1;  // of the local level, or
    bool drained = false;     // (which is in save_dir, too)
    std::string directory;
    bool weights_only = false;  // of the directory
    std::string unhealthy;      // why; tried only with --load-unhealthy
  };

  Result<std::vector<Candidate>> Candidates();
  Status AddSteps(const std::string& run_dir, std::vector<Candidate>& candidates);
  Status AddLoad(std::vector<Candidate>& candidates);
  Status LeaveOutUnhealthy(std::vector<Candidate>& candidates) const;
  Status StepsAreGone() const;
  std::string PlaceOf(const std::vector<Candidate>& candidates) const;
  void ReportMissingNewest(const Resumed& resumed) const;
  Result<Candidate> Agreed(const Result<Candidate>& proposal);
  Status Load(const Candidate& candidate, StateBuffers& buffers, Resumed& resumed);
  Status LoadStep(FileSystem& fs, const std::string& directory, StateBuffers& buffers, Resumed& resumed);
  Result<uint32_t> WeightOf(const StepReader& step, const TensorLookup& lookup, const ParameterSpec& spec,
                            const StateBuffers::Part& part) const;
  Result<uint32_t> TensorOf(const StepReader& step, const TensorLookup& lookup, const ParameterSpec& spec,
                            const StateBuffers::Part& part) const;
  Status CheckStates(const StepReader& step, const StateBuffers& buffers) const;
  Status LoadParts(StepReader& step, StateBuffers& buffers, bool weights_alone);
  Status LoadToGpu(StepReader& step, std::span<const ReadRequest> requests) const;
  Status LoadAs(StepReader& step, uint32_t tensor, const Box& box, Dtype dtype, bool on_gpu,
                std::byte* target);
  void LoadRng(StepReader& step, StateBuffers& buffers);

  const CheckpointerOptions& options_;
  const std::string run_;
  LocalSteps* const local_;
  ControlPlane& control_;
  FileSystem& fs_ = FileSystem::Posix();
  std::optional<BranchedStep> newest_;
};

// The random state of one rank: a tensor that only the same rank of the same topology loads.
TensorEntry RngTensor(const Topology& topology, int rank, size_t bytes);

}  // namespace cairn
