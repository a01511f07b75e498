// The log: one line every log interval in Megatron-LM's format (with the consumed tokens of BigScience's),
// one JSON object a step, and TensorBoard scalars by Megatron-LM's names. Only the last rank writes, as it
// has the loss.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/model/training_flops.h"
#include "runtime/config/train_config.h"
#include "runtime/control/train_state.h"
#include "runtime/log/event_writer.h"
#include "runtime/log/log_file.h"

namespace cairn {

// For one step, with the half of attention that the causal mask leaves, as Megatron-LM counts.
Flops StepFlops(const TrainConfig& config, const Topology& topology, int64_t global_batch);

struct StepReport {
  TrainState state;  // after the step
  int64_t global_batch = 0;
  double lr = 0;          // after the step: of the next update (lr_schedule.h)
  double loss = 0;        // mean over the global batch; NaN or infinite where training went wrong
  double loss_scale = 1;  // that the step used
  double grad_norm = 0;   // before clipping
  double zeros = 0;       // of the gradient, if they were counted
  bool skipped = false;
  double seconds = 0;
};

// The loss of the weights after an iteration.
struct EvaluationReport {
  int64_t iteration = 0;
  double loss = 0;
  std::string name = {};  // of its weighted split; empty: that of --split
  bool test = false;      // at the end of the training
};

// Sums over the steps since the last line.
struct IntervalSums {
  int64_t steps = 0;
  int64_t samples = 0;
  int64_t losses = 0;  // finite ones of steps not skipped, as in Megatron's mean
  int64_t skipped = 0;
  int64_t nans = 0;
  double loss = 0;
  double seconds = 0;
  Flops flops;

  void Add(const StepReport& report, const Flops& of_step);
};

class TrainLog {
 public:
  // Opens the files if this rank writes. Errors: IoError, NoSpace (a file).
  static Result<std::unique_ptr<TrainLog>> Open(const TrainConfig& config, const Topology& topology, int rank,
                                                int64_t total_iterations);
  ~TrainLog();

  // None of these outputs makes the training fail: one that cannot be written is reported once, and is tried
  // again each log interval (console.h).
  void Step(const StepReport& report);
  void Evaluation(const EvaluationReport& report);
  void EvaluationBatch(int64_t batch, double loss);  // from 1; only in JSON
  void Message(const std::string& line);             // on stdout
  // Only for TensorBoard.
  struct Scalar {
    std::string tag;
    double value = 0;
  };
  void Scalars(int64_t iteration, const std::vector<Scalar>& scalars);

 private:
  TrainLog(const TrainConfig& config, const Topology& topology, int64_t total_iterations);
  std::string Line(const StepReport& report) const;
  void WriteJson(const StepReport& report, bool interval_ends);
  void AddScalars(const StepReport& report, bool interval_ends);
  double Tflops(double flops) const;  // a second and rank, over the interval

  TrainConfig config_;
  Topology topology_;
  int64_t total_iterations_;
  double peak_tflops_ = 0;  // of a rank's device; 0: not known
  bool writes_ = false;
  IntervalSums interval_;
  std::unique_ptr<LogFile> json_;
  std::optional<EventWriter> events_;
};

}  // namespace cairn
