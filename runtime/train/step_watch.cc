#include "runtime/train/step_watch.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/train/memory_use.h"

namespace cairn {
namespace {

std::function<void()> Synchronizer(at::Device device) {
  if (device.is_cpu()) return {};
  return [device] { c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index()); };
}

// Collective: every rank's times, by rank.
std::vector<Times> GatherTimes(const Times& mine, const ProcessGroup& world, at::Device device) {
  const auto options = at::TensorOptions(at::kDouble);
  at::Tensor all = at::zeros({world.size(), kTimers}, options.device(device));
  const at::Tensor own = at::empty({kTimers}, options);
  std::ranges::copy(mine, own.mutable_data_ptr<double>());
  at::Tensor flat = all.view({-1});
  world.AllGather(flat, own.to(device), "timers");
  all = all.cpu();
  std::vector<Times> times(static_cast<size_t>(world.size()));
  const double* seconds = all.const_data_ptr<double>();
  for (Times& rank : times)
    for (double& value : rank) value = *seconds++;
  return times;
}

}  // namespace

StepWatch::StepWatch(const TrainConfig& config, const ParallelDims& dims, at::Device device)
    : config_(config), dims_(dims), device_(device) {
  SetTimers(config.timing_log_level, Synchronizer(device));
  if (dims.world_rank == 0 && !config.prometheus_textfile.empty())
    prometheus_ = std::make_unique<PrometheusFile>(config.prometheus_textfile);
  metrics_.run = config.save;
}

Result<std::unique_ptr<StepWatch>> StepWatch::Open(const TrainConfig& config, const ParallelDims& dims,
                                                   at::Device device, int64_t total_iterations) {
  std::unique_ptr<StepWatch> watch(new StepWatch(config, dims, device));
  CAIRN_ASSIGN_OR_RETURN(watch->log_,
                         TrainLog::Open(config, dims.topology, dims.world_rank, total_iterations));
  return watch;
}

void StepWatch::Step(const StepReport& report, const SaveStats& saves) {
  const int64_t iteration = report.state.iteration;
  NoteMetrics(report);
  log_->Step(report);
  if (iteration % config_.log_interval != 0) return;
  LogMemory(iteration);
  if (TimersAreOn()) LogTimes(iteration);
  WriteMetrics(saves);
  interval_ = {};
}

// As Megatron-LM does, of the ranks that hold the model once; the others' is the same.
void StepWatch::LogMemory(int64_t iteration) {
  const bool due = config_.log_memory_interval > 0 && iteration % config_.log_memory_interval == 0;
  if (dims_.at(Axis::kDp) == 0 && (due || !memory_logged_))
    Print(MemoryLine(dims_.world_rank, iteration, MemoryUseOf(device_)) + "\n");
  memory_logged_ = true;
  if (!config_.log_memory_to_tensorboard) return;
  const MemoryUse use = MemoryUseOf(device_);
  log_->Scalars(iteration, {{"mem-reserved-bytes", static_cast<double>(use.reserved)},
                            {"mem-allocated-bytes", static_cast<double>(use.allocated)},
                            {"mem-max-allocated-bytes", static_cast<double>(use.max_allocated)}});
}

void StepWatch::LogTimes(int64_t iteration) {
  const std::vector<Times> ranks = GatherTimes(TakeTimes(), dims_.world, device_);
  const std::string lines = TimesText(ranks, interval_.steps,
                                      config_.timing_log_option == "max"   ? TimesOf::kMax
                                      : config_.timing_log_option == "all" ? TimesOf::kAll
                                                                           : TimesOf::kMinMax);
  if (!lines.empty()) log_->Message(lines);
  if (!config_.log_timers_to_tensorboard) return;
  const Times slowest = SlowestTimes(ranks);
  std::vector<TrainLog::Scalar> scalars;
  for (int i = 0; i < kTimers; ++i)
    if (const double seconds = slowest[static_cast<size_t>(i)]; seconds > 0)
      scalars.push_back({fmt::format("{}-time", Name(static_cast<Timer>(i))),
                         seconds / static_cast<double>(interval_.steps)});
  log_->Scalars(iteration, scalars);
}

void StepWatch::NoteMetrics(const StepReport& report) {
  interval_.Add(report, StepFlops(config_, dims_.topology, report.global_batch));
  if (!prometheus_) return;
  metrics_.report = report;
  metrics_.tokens_per_second =
      static_cast<double>(interval_.samples * config_.seq_length) / interval_.seconds;
  metrics_.model_flops_per_second = interval_.flops.model / interval_.seconds;
}

void StepWatch::WriteMetrics(const SaveStats& saves) {
  if (!prometheus_) return;
  metrics_.saves = saves;
  prometheus_->Write(metrics_);
}

void StepWatch::Evaluation(const EvaluationReport& report, bool leads) {
  if (leads) metrics_.validation_loss = report.loss;
  log_->Evaluation(report);
}

void StepWatch::End(const SaveStats& saves) {
  if (metrics_.report.state.iteration > 0) WriteMetrics(saves);
}

}  // namespace cairn
