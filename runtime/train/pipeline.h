// One step's micro-batches through the pipeline: 1F1B (Narayanan et al. 2021, "PipeDream-Flush").
//
// A stage first runs as many forwards as there are stages behind it, then one forward and one backward in
// turn, then the backwards that are left, so that it holds the activations of at most `stages` micro-batches.
// Sends do not block, and one is waited for only when a later message of its receiver proves that it arrived:
// no order of arrival can deadlock. With one stage this is plain gradient accumulation.
#pragma once

#include <deque>
#include <functional>

#include "runtime/model/gpt.h"
#include "runtime/train/data_loader.h"

namespace cairn {

class Pipeline {
 public:
  using Batches = std::function<MicroBatch(int64_t micro_batch)>;

  // `stage` must outlive the pipeline.
  Pipeline(const TrainConfig& config, const ParallelDims& dims, const GptStage& stage, at::Device device);

  // Forward and backward of `count` micro-batches. Adds to the gradients of this stage those of loss_scale
  // times the sum of the micro-batches' losses. Returns that sum, unscaled, on the last stage; 0 elsewhere.
  double Train(const Batches& batches, int64_t count, double loss_scale);

  // Forward only, without dropout; returns the sum of the losses as Train does.
  double Evaluate(const Batches& batches, int64_t count);

 private:
  struct InFlight {
    at::Tensor input;
    at::Tensor output;  // activations, or the loss on the last stage
  };
  void Forward(const MicroBatch& batch, int64_t micro_batch);
  void Backward(double loss_scale, int64_t micro_batch);
  at::Tensor Receive(int from, const std::string& what);
  void Drain();

  GptStage const& stage_;
  ProcessGroup pp_;
  std::vector<int64_t> activation_shape_;
  at::TensorOptions activation_options_;
  bool training_ = false;
  at::Tensor loss_sum_;
  std::deque<InFlight> in_flight_;  // forwards whose backward is to come
  std::deque<Work> sent_forward_;
  std::deque<Work> sent_backward_;
};

}  // namespace cairn
