// One step's micro-batches through the pipeline, by any schedule (schedules/pipeline_schedule.h) over the
// chunks of the model that this rank holds.
//
// A stage waits only for what its next action receives. Sends do not block; on the CPU the receive of the
// following action is already posted, so messages travel while both ends compute. Activations and gradients
// have separate groups, because with two stages of several chunks both kinds travel between the same ranks in
// both directions. With one stage this is plain gradient accumulation.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "runtime/log/timers.h"
#include "runtime/model/gpt.h"
#include "runtime/schedules/pipeline_schedule.h"
#include "runtime/train/data_loader.h"

namespace cairn {

class Pipeline {
 public:
  using Batches = std::function<MicroBatch(int64_t micro_batch)>;

  // `chunks` must outlive the pipeline.
  Pipeline(const TrainConfig& config, const ParallelDims& dims, const std::vector<GptStage>& chunks,
           at::Device device);

  // Forward and backward of `count` micro-batches. Adds to the gradients of this stage those of loss_scale
  // times the sum of the micro-batches' losses. Returns that sum, unscaled, on the last stage; 0 elsewhere.
  double Train(const Batches& batches, int64_t count, double loss_scale);

  // Forward only, without dropout; returns the sum of the losses as Train does.
  double Evaluate(const Batches& batches, int64_t count);

 private:
  struct InFlight {
    at::Tensor input;
    at::Tensor output;  // activations, or the loss of the last chunk
  };
  struct Awaited {
    at::Tensor tensor;
    at::Tensor share;  // what of it this rank receives
    Work work;
    std::string what;
  };
  struct Channel {
    const ProcessGroup& group;
    int from, to;  // stages
    std::string what;
  };

  PipelineShape ShapeOf(int64_t micro_batches) const;
  double Run(const StageSchedule& schedule, const Batches& batches, double loss_scale);
  void Forward(const StageAction& action, const Batches& batches);
  void Backward(const StageAction& action, double loss_scale);

  Channel ChannelOf(const StageAction& action) const;
  at::Tensor SentShare(const at::Tensor& t) const;
  void Post(const StageAction& action);
  at::Tensor TakeReceived(Timer timer);
  void Send(const StageAction& action, const at::Tensor& t);
  void DropSent(size_t keep);

  const std::vector<GptStage>& chunks_;
  bool gpipe_;
  ProcessGroup tp_;
  ProcessGroup pp_;
  ProcessGroup pp_gradients_;
  std::vector<int64_t> activation_shape_;
  at::TensorOptions activation_options_;
  size_t receives_ahead_;
  bool sends_shares_;
  bool all_chunks_read_;  // of documents
  bool training_ = false;
  at::Tensor loss_sum_;
  std::vector<std::deque<InFlight>> in_flight_;  // by chunk: forwards whose backward is to come
  std::deque<Awaited> awaited_;                  // in the order of the actions
  std::deque<Work> sent_;
};

// Mean loss of `micro_batches` on each data parallel rank, without dropout. Collective over the world; the
// same on all ranks.
double MeanLoss(Pipeline& pipeline, const ParallelDims& dims, at::Device device,
                const Pipeline::Batches& batches, int64_t micro_batches);

}  // namespace cairn
