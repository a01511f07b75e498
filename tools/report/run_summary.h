// The facts of a run in a report: averages, speed, memory, its end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/report/training_run.h"

namespace cairn {

// kMegatron: hardware FLOPs as in published tables. kModel: only the model's, as in logs
// (tools/plan/formulas.h). kAuto: Megatron's if the model's shape is known, else the simple one.
enum class TflopsFormula { kAuto, kSimple, kMegatron, kModel };

// TFLOPs of a GPU by each formula whose inputs are known.
struct FormulaTflops {
  std::optional<double> simple, megatron, model;

  std::optional<double> Of(TflopsFormula formula) const;
};
// `config` with GPUs and the sequence; `batch` samples in `seconds`.
FormulaTflops TflopsOf(const RunConfig& config, std::optional<double> parameters, double batch,
                       double seconds);

struct SummaryOptions {
  RunConfig defaults;  // facts that are neither in the log nor in the file's name
  int64_t skip = 0;    // first iterations that the averages leave out
  TflopsFormula formula = TflopsFormula::kAuto;
  std::optional<double> iterations;  // of the training that is planned: for its days
  std::optional<double> tokens;
};

// Unknown: nothing in the file shows that it is a log of a training.
enum class RunEnd { kOk, kIncomplete, kFailed, kUnknown };
std::string_view Name(RunEnd end);  // "ok", "incomplete", "fail", "unknown"

// A run, and what follows from it.
struct RunSummary : TrainingRun {
  std::string file;  // the first
  RunConfig config;  // completed from name, options and arithmetic
  RunEnd end = RunEnd::kUnknown;
  std::optional<Failure> failure;
  std::string cause;      // empty if it ended well
  bool complete = false;  // got to its last iteration

  int64_t iterations = 0;  // done and kept, each once
  int64_t first_iteration = -1, last_iteration = -1;
  std::optional<double> sec_per_it, sec_per_it_skip1, sec_per_it_skip2;  // means
  std::optional<double> median, deviation, fastest, slowest;
  int64_t outliers = 0;  // lines slower than the median by more than half of it and five deviations
  std::optional<double> tflops, tflops_logged;  // a GPU
  FormulaTflops formulas;
  std::optional<double> samples_per_s, tokens_per_s;
  std::optional<double> parameters;
  std::optional<double> loss;             // at the end; NaN if it was one
  int64_t skipped = 0, nans = 0;          // iterations
  std::optional<double> days, gpu_hours;  // of the planned training
  std::vector<Sample> samples;            // those of `sum`, in seconds an iteration

  bool ok() const { return end == RunEnd::kOk; }
};

RunSummary Summarize(TrainingRun run, const SummaryOptions& options);

}  // namespace cairn
