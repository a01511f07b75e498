// The configuration is completed first (log, then file name, then options, then arithmetic), because speed
// needs the batch and the model's shape. Then iterations are counted, the end is determined, and times are
// averaged; speed and TFLOPs follow from times, and days from these. A sample may be the mean of several log
// lines, so means are weighted by lines.

#include "tools/report/run_summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "ckpt/base/enum_names.h"
#include "tools/plan/formulas.h"
#include "tools/report/config_name.h"

namespace cairn {
namespace {

// The loss of a last iteration that was NaN is NaN, not missing.
std::optional<double> LossOf(double last, const std::vector<Sample>& samples) {
  const bool is_missing = std::isnan(last) && (samples.empty() || samples.back().nans == 0);
  return is_missing ? std::nullopt : std::optional(last);
}

// Times of iterations, weighted by the log lines that a sample is the mean of. Samples without a time do not
// count.
class Times {
 public:
  Times(std::span<const Sample> samples, int64_t interval, int64_t skip) {
    if (samples.empty()) return;
    const int64_t begin = samples[0].iteration - interval * samples[0].lines;
    size_t first = 0;
    while (first < samples.size() &&
           samples[first].iteration - interval * samples[first].lines < begin + skip)
      ++first;
    kept_ = samples.subspan(first);
    empty_ = std::ranges::all_of(kept_, [](const Sample& sample) { return std::isnan(sample.seconds); });
  }

  bool empty() const { return empty_; }

  double Mean() const { return Sum(&Sample::seconds) / Lines(); }

  double Deviation(double mean) const {
    const auto squared = [mean](const Sample& sample) {
      return (sample.seconds - mean) * (sample.seconds - mean);
    };
    return Lines() > 1 ? std::sqrt(Sum(squared) / (Lines() - 1)) : 0;
  }

  std::vector<double> Seconds() const {
    std::vector<double> seconds;
    seconds.reserve(kept_.size());
    for (const Sample& sample : kept_)
      if (!std::isnan(sample.seconds)) seconds.push_back(sample.seconds);
    return seconds;
  }

  static double MedianOf(std::vector<double>& values) {
    const size_t half = values.size() / 2;
    std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(half));
    const double upper = values[half];
    if (values.size() % 2 == 1) return upper;
    return (upper + *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(half))) /
           2;
  }

  // Slower than the median by five deviations, estimated from the median deviation, which a few outliers do
  // not move.
  static int64_t Outliers(const std::vector<double>& seconds, double median) {
    std::vector<double> distances = seconds;
    for (double& distance : distances) distance = std::abs(distance - median);
    const double limit = median + std::max(0.5 * median, 5 * 1.4826 * MedianOf(distances));
    return std::ranges::count_if(seconds, [limit](double second) { return second > limit; });
  }

  // Mean of the global batches; nullopt if no line has it.
  std::optional<double> Batch() const {
    double sum = 0, lines = 0;
    for (const Sample& sample : kept_) {
      if (sample.global_batch <= 0) continue;
      sum += static_cast<double>(sample.global_batch) * sample.lines;
      lines += sample.lines;
    }
    return lines > 0 ? std::optional(sum / lines) : std::nullopt;
  }

 private:
  // One for each log line with a time.
  template <typename Value>
  double Sum(const Value& value) const {
    double sum = 0;
    for (const Sample& sample : kept_)
      if (!std::isnan(sample.seconds)) sum += std::invoke(value, sample) * sample.lines;
    return sum;
  }
  double Lines() const {
    return Sum([](const Sample&) { return 1.0; });
  }

  std::span<const Sample> kept_;
  bool empty_ = true;
};

std::optional<double> MeanAfter(const std::vector<Sample>& samples, int64_t interval, int64_t skip) {
  const Times times(samples, interval, skip);
  return times.empty() ? std::nullopt : std::optional(times.Mean());
}

void TakeTimes(int64_t interval, int64_t skip, RunSummary& summary) {
  const Times times(summary.samples, interval, skip);
  summary.sec_per_it_skip1 = MeanAfter(summary.samples, interval, 1);
  summary.sec_per_it_skip2 = MeanAfter(summary.samples, interval, 2);
  if (times.empty()) return;
  std::vector<double> seconds = times.Seconds();
  const auto [fastest, slowest] = std::ranges::minmax(seconds);
  const double mean = times.Mean(), median = Times::MedianOf(seconds);
  summary.sec_per_it = mean;
  summary.median = median;
  summary.deviation = times.Deviation(mean);
  summary.fastest = fastest;
  summary.slowest = slowest;
  summary.outliers = Times::Outliers(seconds, median);
}

void TakeSpeed(int64_t interval, const SummaryOptions& options, RunSummary& summary) {
  const RunConfig& config = summary.config;
  std::optional<double> batch = Times(summary.samples, interval, options.skip).Batch();
  if (!batch && config.gbs) batch = static_cast<double>(*config.gbs);
  if (!batch || !summary.sec_per_it || !(*summary.sec_per_it > 0)) return;
  summary.samples_per_s = *batch / *summary.sec_per_it;
  if (!config.seq) return;
  const double seq = static_cast<double>(*config.seq);
  summary.tokens_per_s = *summary.samples_per_s * seq;
  if (!config.gpus) return;
  summary.formulas = TflopsOf(config, summary.parameters, *batch, *summary.sec_per_it);
  summary.tflops = summary.formulas.Of(options.formula);
}

void TakeDays(const SummaryOptions& options, RunSummary& summary) {
  if (!summary.sec_per_it) return;
  std::optional<double> iterations = options.iterations;
  if (!iterations && options.tokens && summary.tokens_per_s && *summary.tokens_per_s > 0)
    iterations = *options.tokens / (*summary.tokens_per_s * *summary.sec_per_it);
  if (!iterations) return;
  summary.days = DaysToTrain(*iterations, *summary.sec_per_it);
  if (summary.config.gpus) summary.gpu_hours = *summary.days * 24 * static_cast<double>(*summary.config.gpus);
}

// True for a failure after the last iteration that is only the other ranks' view of a rank that left.
bool OnlyTheEnd(const TrainingStart& sum) {
  constexpr int kCause = 40;  // failure.cc: the program or the machine stopped by itself
  return (sum.reached_total() || sum.done) && sum.failure->weight < kCause;
}

void TakeEnd(RunSummary& summary) {
  const TrainingStart& sum = summary.sum;
  summary.complete = sum.reached_total();
  const bool failed = sum.failure && !OnlyTheEnd(sum);
  if (failed) summary.failure = sum.failure;
  const int64_t total = sum.total > 0 ? sum.total : sum.config.train_iters.value_or(-1);
  const int64_t last = sum.series.empty() ? 0 : sum.series.back().iteration;
  if (failed) {
    summary.end = RunEnd::kFailed;
    summary.cause = sum.failure->cause;
  } else if (sum.series.empty()) {
    summary.end = sum.config.empty() ? RunEnd::kUnknown : RunEnd::kIncomplete;
    summary.cause = sum.why_empty;
  } else if (!sum.done && total > 0 && total - last >= LogInterval(sum)) {
    summary.end = RunEnd::kIncomplete;
    summary.cause = fmt::format("ends at {} of {}", last, total);
  } else {
    summary.end = RunEnd::kOk;
  }
}

void TakeIterations(int64_t interval, RunSummary& summary) {
  const std::vector<Sample>& samples = summary.sum.series.samples();
  // NeMo counts iterations from 0.
  int64_t last = !samples.empty() && samples[0].iteration == 0 ? -1 : 0;
  for (const Sample& sample : samples) {
    summary.iterations += std::clamp<int64_t>(sample.iteration - last, 0, interval * sample.lines);
    last = sample.iteration;
    summary.skipped += sample.skipped;
    summary.nans += sample.nans;
  }
  if (samples.empty()) return;
  summary.skipped = std::max(summary.skipped, summary.sum.skipped_so_far);
  summary.first_iteration = samples.front().iteration;
  summary.last_iteration = samples.back().iteration;
}

// Turns sample rates into seconds of an iteration, if the batch is known.
void TakeSamples(RunSummary& summary) {
  summary.samples = summary.sum.series.Release();
  if (summary.sum.source != SampleSource::kThroughput) return;
  const double batch = summary.config.gbs ? static_cast<double>(*summary.config.gbs) : kNoNumber;
  for (Sample& sample : summary.samples) sample.seconds *= batch;
}

}  // namespace

std::string_view Name(RunEnd end) {
  return NameIn<RunEnd::kUnknown>({"ok", "incomplete", "fail", "unknown"}, end);
}

std::optional<double> FormulaTflops::Of(TflopsFormula formula) const {
  if (formula == TflopsFormula::kModel) return model;
  if (formula == TflopsFormula::kMegatron || (formula == TflopsFormula::kAuto && megatron)) return megatron;
  return simple;
}

FormulaTflops TflopsOf(const RunConfig& config, std::optional<double> parameters, double batch,
                       double seconds) {
  FormulaTflops tflops;
  if (config.IsMixture()) parameters = ActiveParameters(config);
  const double gpus = static_cast<double>(*config.gpus);
  const bool recompute = config.recompute.value_or(true);
  if (parameters)
    tflops.simple =
        SimpleTflops(*parameters, static_cast<double>(*config.seq), batch, seconds, gpus, recompute);
  const auto shape = ShapeOf(config);
  if (!shape) return tflops;
  tflops.megatron = MegatronTflops(*shape, 1, batch, seconds, gpus,
                                   recompute ? Recomputation::kFull : Recomputation::kNone);
  tflops.model = ModelTflops(*shape, 1, batch, seconds, gpus);
  return tflops;
}

RunSummary Summarize(TrainingRun run, const SummaryOptions& options) {
  RunSummary summary;
  static_cast<TrainingRun&>(summary) = std::move(run);
  const TrainingStart& sum = summary.sum;
  summary.file = summary.files[0];
  summary.config = sum.config;
  FillFrom(ConfigFromName(summary.file), summary.config);
  FillFrom(options.defaults, summary.config);
  if (!sum.series.empty() && sum.series.back().global_batch > 0 && !summary.config.gbs)
    summary.config.gbs = sum.series.back().global_batch;
  Derive(summary.config);
  summary.parameters = Parameters(summary.config);

  const int64_t interval = LogInterval(sum);
  TakeIterations(interval, summary);
  TakeEnd(summary);
  TakeSamples(summary);
  TakeTimes(interval, options.skip, summary);
  if (sum.logged_tflops_lines > 0)
    summary.tflops_logged = sum.logged_tflops_sum / static_cast<double>(sum.logged_tflops_lines);
  TakeSpeed(interval, options, summary);
  if (!summary.tflops && options.formula == TflopsFormula::kAuto) summary.tflops = summary.tflops_logged;
  TakeDays(options, summary);
  summary.loss = LossOf(sum.last_loss, summary.samples);
  return summary;
}

}  // namespace cairn
