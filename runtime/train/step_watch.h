// The outputs of a training other than its checkpoints: the log (train_log.h), lines on memory, timers over
// all ranks, the file for Prometheus.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "runtime/comm/parallel_dims.h"
#include "runtime/log/prometheus_file.h"
#include "runtime/log/timers.h"
#include "runtime/log/train_log.h"

namespace cairn {

class StepWatch {
 public:
  // Starts the timers. `dims` must outlive this. Errors: those of TrainLog::Open.
  static Result<std::unique_ptr<StepWatch>> Open(const TrainConfig& config, const ParallelDims& dims,
                                                 at::Device device, int64_t total_iterations);

  void Message(const std::string& line) { log_->Message(line); }
  // Collective over the world at the end of a log interval if timers are on. Otherwise no rank waits for
  // another, and no failing output stops the training.
  void Step(const StepReport& report, const SaveStats& saves);
  // `leads`: it is the validation loss that represents all.
  void Evaluation(const EvaluationReport& report, bool leads);
  // After the last save.
  void End(const SaveStats& saves);

 private:
  StepWatch(const TrainConfig& config, const ParallelDims& dims, at::Device device);
  void LogMemory(int64_t iteration);
  void LogTimes(int64_t iteration);
  void NoteMetrics(const StepReport& report);
  void WriteMetrics(const SaveStats& saves);

  const TrainConfig config_;
  const ParallelDims& dims_;
  const at::Device device_;
  std::unique_ptr<TrainLog> log_;
  std::unique_ptr<PrometheusFile> prometheus_;  // of rank 0, if it is asked for
  TrainMetrics metrics_;
  IntervalSums interval_;
  bool memory_logged_ = false;
};

}  // namespace cairn
