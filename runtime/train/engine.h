// Everything of a training that lives on the device, and one step with it: forward and backward of a global
// batch, reduction, clipping, update.
#pragma once

#include <functional>
#include <memory>

#include "runtime/model/autograd/random_streams.h"
#include "runtime/saving/checkpoint_hooks.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/pipeline.h"
#include "runtime/train/zero.h"

namespace cairn {

// Wishes of one rank, or of any.
struct Votes {
  bool stop = false;
  bool save_now = false;
  bool busy = false;   // with an earlier save
  bool alarm = false;  // copies differ
};

// The result of a step, the same on all ranks once the gradients are reduced.
struct StepOutcome {
  double loss = 0;        // mean over the global batch
  double grad_norm = 0;   // of the mean gradient, before clipping
  double zeros = 0;       // elements of the gradient, when counted
  bool overflow = false;  // a gradient is infinite or NaN: not to be applied
  Votes votes;
  bool unread = false;  // some rank could not read its data: not to be applied either
};

class Engine {
 public:
  // Weights as the config's seed gives them. Requires a validated config; `dims` must outlive the engine.
  Engine(const TrainConfig& config, const ParallelDims& dims, at::Device device);

  // Forward, backward and reduction of `micro_batches` on each data parallel rank. `votes` travel in the
  // collective that carries the norm, so ranks agree on the next action at no cost. `data_failed` is called
  // once all batches are read, and is combined in the same way.
  StepOutcome ComputeGradients(const Pipeline::Batches& batches, int64_t micro_batches, double loss_scale,
                               const Votes& votes, const std::function<bool()>& data_failed);

  // Clips and applies the gradients of ComputeGradients. `step` counts updates from 1.
  void Update(const StepOutcome& outcome, double lr, int64_t step);

  // Mean loss of `micro_batches` on each data parallel rank, without dropout. The same on all ranks.
  double Evaluate(const Pipeline::Batches& batches, int64_t micro_batches);

  // This rank's tensors for a checkpoint; rng_state is as of now.
  StateBuffers Buffers() const;
  // To be called when Buffers() were filled from a checkpoint.
  void Resumed();
  RandomStreams& streams() { return streams_; }
  const GptStage& stage() const { return chunks_.back(); }  // with one chunk on this rank: all of it

 private:
  const TrainConfig config_;
  const ParallelDims& dims_;
  FlatParameters parameters_;
  RandomStreams streams_;
  ZeroUnits zero_;
  std::vector<GptStage> chunks_;
  Pipeline pipeline_;
  Optimizer optimizer_;
  double grad_divisor_ = 1;  // of the sums in the gradient buffer: loss scale times samples averaged over
};

}  // namespace cairn
