#include "runtime/train/pipeline.h"

#include <torch/torch.h>

#include <algorithm>

namespace cairn {
namespace {

using at::Tensor;

std::string Label(const char* what, int64_t micro_batch) {
  return fmt::format("{} of micro-batch {}", what, micro_batch);
}

// Waits for all but the newest `keep`.
void WaitForOldest(std::deque<Work>& sent, size_t keep) {
  for (; sent.size() > keep; sent.pop_front()) sent.front().Wait();
}

}  // namespace

Pipeline::Pipeline(const TrainConfig& config, const ParallelDims& dims, const GptStage& stage,
                   at::Device device)
    : stage_(stage),
      pp_(dims.pp),
      activation_shape_{config.micro_batch_size, config.seq_length, config.hidden_size},
      activation_options_(at::TensorOptions(device).dtype(ToScalarType(config.dtype()))) {}

double Pipeline::Train(const Batches& batches, int64_t count, double loss_scale) {
  training_ = true;
  loss_sum_ = Tensor();
  const int64_t warmup = std::min<int64_t>(count, pp_.size() - 1 - pp_.rank());
  for (int64_t i = 0; i < count + warmup; ++i) {
    if (i < count) Forward(batches(i), i);
    if (i >= warmup) Backward(loss_scale, i - warmup);
  }
  Drain();
  return loss_sum_.defined() ? loss_sum_.item<double>() : 0.0;
}

double Pipeline::Evaluate(const Batches& batches, int64_t count) {
  const at::NoGradGuard no_grad;
  training_ = false;
  loss_sum_ = Tensor();
  for (int64_t i = 0; i < count; ++i) {
    Forward(batches(i), i);
    in_flight_.clear();
    WaitForOldest(sent_forward_, 1);
  }
  Drain();
  return loss_sum_.defined() ? loss_sum_.item<double>() : 0.0;
}

void Pipeline::Forward(const MicroBatch& batch, int64_t micro_batch) {
  Tensor input = batch.tokens;
  if (!stage_.is_first()) {
    input = Receive(pp_.rank() - 1, Label("activations", micro_batch)).requires_grad_(training_);
    // In the steady state the stage before sends this only after it had all our gradients but the newest.
    WaitForOldest(sent_backward_, 1);
  }
  Tensor output = stage_.forward(input, training_);
  if (stage_.is_last()) {
    output = stage_.Loss(output, batch.labels);
    loss_sum_ = loss_sum_.defined() ? loss_sum_ + output.detach() : output.detach();
  } else {
    sent_forward_.push_back(
        pp_.SendAsync(output.detach(), pp_.rank() + 1, Label("activations", micro_batch)));
  }
  in_flight_.push_back({input, output});
}

void Pipeline::Backward(double loss_scale, int64_t micro_batch) {
  const InFlight item = std::move(in_flight_.front());
  in_flight_.pop_front();
  Tensor grad;
  if (stage_.is_last()) {
    grad = at::full({}, loss_scale, item.output.options());
  } else {
    grad = Receive(pp_.rank() + 1, Label("gradient", micro_batch));
    WaitForOldest(sent_forward_, sent_forward_.size() - 1);  // the next stage has had this micro-batch
  }
  torch::autograd::backward({item.output}, {grad});
  if (!stage_.is_first())
    sent_backward_.push_back(
        pp_.SendAsync(item.input.grad(), pp_.rank() - 1, Label("gradient", micro_batch)));
}

Tensor Pipeline::Receive(int from, const std::string& what) {
  Tensor t = at::empty(activation_shape_, activation_options_);
  pp_.RecvAsync(t, from, what).Wait();
  return t;
}

void Pipeline::Drain() {
  WaitForOldest(sent_forward_, 0);
  WaitForOldest(sent_backward_, 0);
}

}  // namespace cairn
