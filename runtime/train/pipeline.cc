// An action is: take what it receives, compute, send what follows. Receives are posted in the order of the
// actions, and schedules send in the order in which others receive, so messages of one kind need no names.

#include "runtime/train/pipeline.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

namespace cairn {
namespace {

using at::Tensor;

// Actions whose messages are awaited before their turn. On a GPU none is: NCCL does the messages of a group
// in the order of the calls, and what is awaited early would hold up what is to be sent.
size_t ReceivesAhead(at::Device device) { return device.is_cpu() ? 1 : 0; }

// True if each tensor parallel rank sends its share of a message, which they all hold, and the receivers
// gather them: over a network between the nodes of two stages that is 1 / TP of the bytes. Within a node it
// is one more collective for nothing.
bool SendsShares(const TrainConfig& config, const ParallelDims& dims, at::Device device) {
  const int64_t elements = int64_t{config.micro_batch_size} * config.seq_length * config.hidden_size;
  const bool wanted = config.scatter_gather_tensors_in_pipeline ||
                      (!device.is_cpu() && !config.no_scatter_gather_tensors_in_pipeline);
  return wanted && !config.sequence_parallel && dims.tp.size() > 1 && elements % dims.tp.size() == 0;
}

// The shape of the tensor that a rank holds between two stages.
std::vector<int64_t> ActivationShape(const TrainConfig& config, int tp) {
  if (!config.sequence_parallel || tp == 1)
    return {config.micro_batch_size, config.seq_length, config.hidden_size};
  return {int64_t{config.micro_batch_size} * config.seq_length / tp, config.hidden_size};
}

bool IsForward(const StageAction& action) { return action.kind == StageAction::Kind::kForward; }

}  // namespace

Pipeline::Pipeline(const TrainConfig& config, const ParallelDims& dims, const std::vector<GptStage>& chunks,
                   at::Device device)
    : chunks_(chunks),
      gpipe_(config.pipeline_schedule == "gpipe"),
      tp_(dims.tp),
      pp_(dims.pp),
      pp_gradients_(dims.pp_gradients),
      activation_shape_(ActivationShape(config, dims.tp.size())),
      activation_options_(at::TensorOptions(device).dtype(ToScalarType(config.dtype()))),
      receives_ahead_(ReceivesAhead(device)),
      sends_shares_(SendsShares(config, dims, device)),
      all_chunks_read_(config.resets_by_document()),
      in_flight_(chunks.size()) {}

double Pipeline::Train(const Batches& batches, int64_t count, double loss_scale) {
  training_ = true;
  const PipelineShape shape = ShapeOf(count);
  const auto make = gpipe_ ? GPipe : shape.chunks > 1 ? Interleaved : OneForwardOneBackward;
  return Run(make(shape, pp_.rank()), batches, loss_scale);
}

double Pipeline::Evaluate(const Batches& batches, int64_t count) {
  const at::NoGradGuard no_grad;
  training_ = false;
  return Run(ForwardOnly(ShapeOf(count)), batches, 0);
}

PipelineShape Pipeline::ShapeOf(int64_t micro_batches) const {
  return {.stages = pp_.size(), .chunks = static_cast<int>(chunks_.size()), .micro_batches = micro_batches};
}

double Pipeline::Run(const StageSchedule& schedule, const Batches& batches, double loss_scale) {
  loss_sum_ = Tensor();
  // Forwards alone run ahead of the stages behind, which must not pile up messages; in training the gradients
  // that come back hold a stage back.
  const size_t sends_in_flight = training_ ? schedule.size() : pp_.size();
  size_t posted = 0;
  for (size_t i = 0; i < schedule.size(); ++i) {
    for (; posted < std::min(i + 1 + receives_ahead_, schedule.size()); ++posted) Post(schedule[posted]);
    if (IsForward(schedule[i]))
      Forward(schedule[i], batches);
    else
      Backward(schedule[i], loss_scale);
    DropSent(sends_in_flight);
  }
  DropSent(0);
  return loss_sum_.defined() ? loss_sum_.item<double>() : 0.0;
}

void Pipeline::Forward(const StageAction& action, const Batches& batches) {
  const GptStage& chunk = chunks_[action.chunk];
  MicroBatch batch;
  if (chunk.is_first() || chunk.is_last() || all_chunks_read_) batch = batches(action.micro_batch);
  const Tensor input =
      chunk.is_first() ? batch.tokens : TakeReceived(Timer::kForwardRecv).requires_grad_(training_);
  const Tensor output = Timed(Timer::kForwardCompute, [&] {
    const Tensor out = chunk.forward(input, training_, batch.documents);
    return chunk.is_last() ? chunk.Loss(out, batch.labels) : out;
  });
  if (chunk.is_last()) {
    loss_sum_ = loss_sum_.defined() ? loss_sum_ + output.detach() : output.detach();
  } else {
    Send(action, output.detach());
  }
  if (training_) in_flight_[action.chunk].push_back({input, output});
}

void Pipeline::Backward(const StageAction& action, double loss_scale) {
  const GptStage& chunk = chunks_[action.chunk];
  const InFlight item = std::move(in_flight_[action.chunk].front());
  in_flight_[action.chunk].pop_front();
  const Tensor grad =
      chunk.is_last() ? at::full({}, loss_scale, item.output.options()) : TakeReceived(Timer::kBackwardRecv);
  Timed(Timer::kBackwardCompute, [&] { torch::autograd::backward({item.output}, {grad}); });
  if (!chunk.is_first()) Send(action, item.input.grad());
}

// Activations go up the ring of stages and gradients down, each in a group of its own.
Pipeline::Channel Pipeline::ChannelOf(const StageAction& action) const {
  const int up = (pp_.rank() + 1) % pp_.size(), down = (pp_.rank() + pp_.size() - 1) % pp_.size();
  if (IsForward(action))
    return {pp_, down, up, fmt::format("activations of micro-batch {}", action.micro_batch)};
  return {pp_gradients_, up, down, fmt::format("gradient of micro-batch {}", action.micro_batch)};
}

Tensor Pipeline::SentShare(const Tensor& t) const {
  return sends_shares_ ? t.view({tp_.size(), -1})[tp_.rank()] : t;
}

void Pipeline::Post(const StageAction& action) {
  const GptStage& chunk = chunks_[action.chunk];
  if (IsForward(action) ? chunk.is_first() : chunk.is_last()) return;
  const Channel channel = ChannelOf(action);
  const Tensor t = at::empty(activation_shape_, activation_options_);
  Tensor sent = SentShare(t);
  awaited_.push_back({t, sent, channel.group.RecvAsync(sent, channel.from, channel.what), channel.what});
}

Tensor Pipeline::TakeReceived(Timer timer) {
  const ScopedTimer waiting(timer);
  Awaited next = std::move(awaited_.front());
  awaited_.pop_front();
  next.work.Wait();
  if (sends_shares_) tp_.AllGather(next.tensor, next.share, next.what);
  return next.tensor;
}

void Pipeline::Send(const StageAction& action, const Tensor& t) {
  const Channel channel = ChannelOf(action);
  sent_.push_back(channel.group.SendAsync(SentShare(t), channel.to, channel.what));
}

// Drops the messages that have arrived, and all others but the newest `keep`.
void Pipeline::DropSent(size_t keep) {
  while (!sent_.empty() && (sent_.size() > keep || sent_.front().IsComplete())) sent_.pop_front();
}

double MeanLoss(Pipeline& pipeline, const ParallelDims& dims, at::Device device,
                const Pipeline::Batches& batches, int64_t micro_batches) {
  const double mine = pipeline.Evaluate(batches, micro_batches);  // tensor parallel ranks have the same
  Tensor sum =
      at::full({1}, dims.at(Axis::kTp) == 0 ? mine : 0.0, at::TensorOptions(device).dtype(at::kDouble));
  dims.world.AllReduceSum(sum, "validation loss");
  return sum.item<double>() / (static_cast<double>(micro_batches) * dims.topology.dp);
}

}  // namespace cairn
