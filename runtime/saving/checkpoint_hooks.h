// The seam between the trainer's loop and whoever saves and restores its state (checkpointer.h).
//
// The trainer owns the memory and says what lies where; the hooks decide when to save and where to. All ranks
// call every hook at the same place of the loop with the same arguments, so a hook may use collectives.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/placement.h"
#include "runtime/control/train_state.h"

namespace cairn {

// This rank's tensors, in the order of the rank's flat buffer (ckpt/model/placement.h).
struct StateBuffers {
  // One role's elements: of the whole buffer, or of this data parallel rank's partition (masters and moments
  // from ZeRO 1 on, weights under ZeRO 3).
  struct Part {
    Role role = Role::kWeight;
    Dtype dtype = Dtype::kF32;
    std::byte* data = nullptr;  // element covers.begin
    FlatRange covers;           // of the rank's flat buffer; not clipped: the padding at its end is included
    bool on_gpu = false;        // `data` is device memory
  };

  const std::vector<ParameterSpec>& specs;
  const RankLayout& layout;
  std::vector<Part> parts;  // weight, then master (16-bit weights only), then the optimizer's states
  std::string rng_state;    // opaque, up to date in every AfterStep; see Resume
};

// How the saves of this process went so far.
struct SaveStats {
  int64_t failed = 0;
  // The newest step in the run directory: the one resumed from, or saved since.
  std::optional<int64_t> durable_iteration;
  // Where this process saved it.
  std::optional<double> durable_unix_seconds;
  std::optional<double> seconds;        // from its beginning until it was durable
  std::optional<double> stall_seconds;  // of these, those that the training waited
};

class CheckpointHooks {
 public:
  virtual ~CheckpointHooks() = default;

  // Restores the newest good state into the buffers, or returns nothing where there is none to restore. Every
  // true element of weights and of the covered masters and moments is written; padding rows stay zero. Sets
  // rng_state to what this rank saved, or to "" where the topology differs; the trainer then starts streams
  // of its own.
  virtual Result<std::optional<TrainState>> Resume(StateBuffers& buffers) = 0;

  // Called once, after Resume and before the first step, with everything as it will be saved: takes the
  // memory that saves will need.
  virtual Status Prepare(const StateBuffers& buffers) = 0;

  // True while this rank is writing an earlier save. Ranks see different times; the trainer adds their
  // answers up.
  virtual bool Busy() const = 0;

  // Called before the weights and moments change: copies that still run must be complete on return.
  virtual Status BeforeOptimizerStep() = 0;

  // Called after every step. `force`: save now whatever the interval says (end of training, signal, save-now
  // file); otherwise the hooks decide. `busy`: some rank was Busy() when the step began, the same on all
  // ranks. One call a step. An error ends the run, so a failed save is reported, not returned.
  virtual Status AfterStep(const TrainState& state, StateBuffers& buffers, bool force, bool busy) = 0;

  // Called instead of Finish() where training gives up on `state`, whose iterations were bad in a row: what
  // is being saved becomes durable, and the step before the first bad one is marked so that no start resumes
  // from it. Says for people what is left to resume from.
  virtual Result<std::string> GiveUp(const TrainState& state) = 0;

  // Called once after the last step: returns when everything is durable.
  virtual Status Finish() = 0;

  virtual SaveStats Stats() const { return {}; }
};

}  // namespace cairn
