// The interface between the trainer's loop and the code that saves and restores its state (checkpointer.h).
//
// The trainer owns the memory and describes it; the hooks decide when and where to save. All ranks
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
  // The elements of one role, in the whole buffer or in this data parallel rank's partition (masters and
  // moments from ZeRO 1 on, weights under ZeRO 3).
  struct Part {
    Role role = Role::kWeight;
    Dtype dtype = Dtype::kF32;
    std::byte* data = nullptr;  // element covers.begin
    FlatRange covers;           // of the rank's flat buffer, including the padding at its end
    bool on_gpu = false;        // `data` is device memory
  };

  const std::vector<ParameterSpec>& specs;
  const RankLayout& layout;
  std::vector<Part> parts;  // weight, then master (16-bit weights only), then the optimizer's states
  std::string rng_state;    // opaque, current in every AfterStep; see Resume
};

class CheckpointHooks {
 public:
  virtual ~CheckpointHooks() = default;

  // Restores the newest good state into the buffers; nullopt if there is none. Writes every element of
  // weights and of the covered masters and moments, but no padding rows, which stay zero. Sets rng_state to
  // the one that this rank saved, or to "" if the topology differs; the trainer then starts new streams.
  virtual Result<std::optional<TrainState>> Resume(StateBuffers& buffers) = 0;

  // Called once, after Resume and before the first step, with the buffers as they will be saved: reserves the
  // memory for saves.
  virtual Status Prepare(const StateBuffers& buffers) = 0;

  // True while this rank is writing an earlier save. Ranks give different answers; the trainer combines them.
  virtual bool Busy() const = 0;

  // True on rank 0 if a save should be forced after this step because the last one failed.
  virtual bool SavesAgain() const { return false; }

  // Called before the weights and moments change: copies that still run must be complete on return.
  virtual Status BeforeOptimizerStep() = 0;

  // Called after every step. `force`: save now, whatever the interval (end of training, signal, save-now
  // file); otherwise the hooks decide. `busy`: some rank was Busy() when the step began, the same on all
  // ranks. An error ends the run, so a failed save is reported, not returned.
  virtual Status AfterStep(const TrainState& state, StateBuffers& buffers, bool force, bool busy) = 0;

  // Called instead of Finish() if training gives up on `state` after bad iterations in a row: finishes saves
  // in progress, and marks the step before the first bad one, so no start resumes from it. Returns a sentence
  // about the step from which a start can resume.
  virtual Result<std::string> GiveUp(const TrainState& state) = 0;

  // Whether Resume() took a step on the nodes, not in the run directory; the same on all ranks.
  virtual bool ResumedFromNodes() const { return false; }

  // Called if the loss of such a training is not finite: no later start resumes from steps on the nodes, nor
  // from those that this training has saved. Returns a sentence as GiveUp() does. Without another step to
  // resume from it changes nothing and returns an empty text.
  virtual Result<std::string> GiveUpLocal(const TrainState&) { return std::string(); }

  // Called once after the last step: returns when everything is durable.
  virtual Status Finish() = 0;

  virtual SaveStats Stats() const { return {}; }
};

}  // namespace cairn
