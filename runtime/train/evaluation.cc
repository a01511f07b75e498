#include "runtime/train/evaluation.h"

#include <ATen/ATen.h>

#include "runtime/config/model_spec.h"
#include "runtime/saving/resume.h"
#include "runtime/train/device_settings.h"
#include "runtime/train/zero.h"

namespace cairn {

Evaluation::Evaluation(const TrainConfig& config, const ParallelDims& dims, at::Device device)
    : config_(config),
      dims_(dims),
      parameters_(MakeParameters(config, dims, device)),
      streams_(device, config.seed, dims.topology, dims.world_rank),
      chunks_(MakeChunks(config, dims, parameters_, streams_)),
      pipeline_(config, dims, chunks_, device) {}

Result<std::unique_ptr<Evaluation>> Evaluation::Create(const TrainConfig& config, const ParallelDims& dims,
                                                       at::Device device) {
  std::unique_ptr<Evaluation> evaluation(new Evaluation(config, dims, device));
  CAIRN_ASSIGN_OR_RETURN(
      evaluation->data_,
      OpenData(config, dims, device, {.validation = config.eval_iters * config.global_batch_size}));
  CAIRN_ASSIGN_OR_RETURN(evaluation->log_, TrainLog::Open(config, dims.topology, dims.world_rank, 0));
  if (evaluation->data_.validation.empty())
    return InvalidArgument("--skip-train evaluates, but no --valid-weighted-split-paths are given");
  return evaluation;
}

Status Evaluation::Load(ControlPlane& control) {
  const at::Tensor& weights = parameters_.weights();
  StateBuffers buffers{
      .specs = parameters_.specs(), .layout = parameters_.layout(), .parts = {}, .rng_state = {}};
  buffers.parts.push_back({.role = Role::kWeight,
                           .dtype = parameters_.dtype(),
                           .data = static_cast<std::byte*>(weights.mutable_data_ptr()),
                           .covers = {0, static_cast<uint64_t>(weights.numel())},
                           .on_gpu = weights.is_cuda()});
  CheckpointerOptions options{.config = config_,
                              .topology = dims_.topology,
                              .model = ModelFacts(config_),
                              .optimizer_facts = {},
                              .device_copy = CopyBetweenSides,
                              .device_snapshot = {}};
  options.config.finetune = true;
  options.config.save.clear();
  Resumer resumer(options, "", nullptr, control);
  return resumer.Run(buffers).status();
}

void Evaluation::Run() {
  for (const NamedLoader& set : data_.validation) RunOn(set);
}

void Evaluation::RunOn(const NamedLoader& set) {
  const int64_t micro_batches =
      config_.global_batch_size / (int64_t{config_.micro_batch_size} * dims_.topology.dp);
  double total = 0;
  for (int64_t batch = 0; batch < config_.eval_iters; ++batch) {
    const auto batches = [&](int64_t i) { return set.loader->Get(batch * config_.global_batch_size, i); };
    const double loss = MeanLoss(pipeline_, dims_, parameters_.device(), batches, micro_batches);
    log_->EvaluationBatch(batch + 1, loss);
    total += loss;
  }
  log_->Evaluation({.loss = total / static_cast<double>(config_.eval_iters), .name = set.name});
}

}  // namespace cairn
