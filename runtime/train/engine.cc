#include "runtime/train/engine.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "runtime/log/timers.h"
#include "runtime/model/parameters/initialize.h"
#include "runtime/train/tied_embedding.h"

namespace cairn {
namespace {

using at::Tensor;

constexpr double kClipEpsilon = 1e-6;  // as torch's clip_grad_norm_ and Megatron's

}  // namespace

Engine::Engine(const TrainConfig& config, const ParallelDims& dims, at::Device device)
    : config_(config),
      dims_(dims),
      parameters_(MakeParameters(config, dims, device)),
      streams_(device, config.seed, dims.topology, dims.world_rank),
      zero_(config, dims, parameters_),
      chunks_(MakeChunks(config, dims, parameters_, streams_, &zero_)),
      pipeline_(config, dims, chunks_, device),
      optimizer_(config, parameters_, dims) {
  zero_.Plan();
  InitialValues(config, parameters_, [&](const LocalParameter& local, const Tensor& values) {
    parameters_.SetWeights(local, values);
    optimizer_.SetMaster(local, values);
  });
}

StepOutcome Engine::ComputeGradients(const Pipeline::Batches& batches, int64_t micro_batches,
                                     double loss_scale, const Votes& votes,
                                     const std::function<bool()>& data_failed) {
  parameters_.ZeroGrads();
  zero_.BeginStep(micro_batches);
  const double loss_sum =
      Timed(Timer::kForwardBackward, [&] { return pipeline_.Train(batches, micro_batches, loss_scale); });
  ReduceTiedGradients(parameters_, dims_);
  zero_.EndStep();

  const double count = static_cast<double>(micro_batches) * dims_.topology.dp;
  grad_divisor_ = loss_scale * count;
  const bool has_loss = stage().is_last() && dims_.at(Axis::kTp) == 0;
  Tensor sums =
      at::tensor({optimizer_.SquareSum(), has_loss ? loss_sum : 0.0,
                  config_.log_num_zeros_in_grad ? optimizer_.CountZeros() : 0.0, double(votes.stop),
                  double(votes.save_now), double(votes.busy), double(data_failed()), double(votes.alarm)},
                 at::kDouble)
          .to(parameters_.device());
  dims_.world.AllReduceSum(sums, "gradient norm and loss");
  sums = sums.cpu();
  const double* sum = sums.const_data_ptr<double>();
  return {.loss = sum[1] / count,
          .grad_norm = std::sqrt(sum[0]) / grad_divisor_,
          .zeros = sum[2],
          .overflow = !std::isfinite(sum[0]),
          .votes = {.stop = sum[3] > 0, .save_now = sum[4] > 0, .busy = sum[5] > 0, .alarm = sum[7] > 0},
          .unread = sum[6] > 0};
}

void Engine::Update(const StepOutcome& outcome, double lr, int64_t step) {
  const ScopedTimer timer(Timer::kOptimizer);
  const double limit = config_.clip_grad;
  const double clip = limit > 0 ? std::max(1.0, (outcome.grad_norm + kClipEpsilon) / limit) : 1.0;
  optimizer_.Step({.lr = lr, .grad_divisor = grad_divisor_ * clip, .number = step});
  zero_.ShareUpdate();
  CopyTiedWeights(parameters_, dims_);
}

double Engine::Evaluate(const Pipeline::Batches& batches, int64_t micro_batches) {
  return MeanLoss(pipeline_, dims_, parameters_.device(), batches, micro_batches);
}

void Engine::Resumed() {
  optimizer_.TakeWeights();
  zero_.WeightsChanged();
}

StateBuffers Engine::Buffers() const {
  return {.specs = parameters_.specs(),
          .layout = parameters_.layout(),
          .parts = optimizer_.Parts(),
          .rng_state = streams_.SaveState()};
}

}  // namespace cairn
