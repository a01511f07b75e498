// A checkpoint's loss without a training (--skip-train): only its weights, no optimizer, and forward passes
// in the type that the flags name.
//
// The batches are those of the validation split, or made up, as a training's evaluations take them; equal
// weights give equal losses, bit for bit, on the same topology and machine.
#pragma once

#include <memory>

#include "runtime/control/control_plane.h"
#include "runtime/log/train_log.h"
#include "runtime/model/autograd/random_streams.h"
#include "runtime/train/data_loader.h"
#include "runtime/train/pipeline.h"

namespace cairn {

class Evaluation {
 public:
  // Opens data and logs and takes the memory. Requires a validated config with skip_train; `dims` must
  // outlive it. Errors: those of the data and the log files; c10::Error.
  static Result<std::unique_ptr<Evaluation>> Create(const TrainConfig& config, const ParallelDims& dims,
                                                    at::Device device);

  // Collective: reads the weights of --load as they are stored, not their fp32 masters: those that a
  // training's forward passes use. Errors: the same on all ranks.
  Status Load(ControlPlane& control);

  // Evaluates --eval-iters global batches of each validation set: the mean loss goes to stdout, each batch's
  // to --log-json.
  void Run();

  // The failure of this rank to read its data.
  Status DataStatus() const { return data_.status(); }

 private:
  Evaluation(const TrainConfig& config, const ParallelDims& dims, at::Device device);
  void RunOn(const NamedLoader& set);

  const TrainConfig config_;
  const ParallelDims& dims_;
  FlatParameters parameters_;
  RandomStreams streams_;
  std::vector<GptStage> chunks_;
  Pipeline pipeline_;
  DataLoaders data_;
  std::unique_ptr<TrainLog> log_;
};

}  // namespace cairn
