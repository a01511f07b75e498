// Reports are kept until the end, because only the last line may tell the number of steps. Their number is
// bounded: beyond kMaxReports every second one is dropped.
#include "tools/report/trainer_log.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "tools/report/numbers.h"

namespace cairn {
namespace {

constexpr size_t kMaxReports = size_t{1} << 20;
constexpr std::string_view kBegin = "***** Running training *****";

// The number after `name`, in quotes or not; NaN if it is missing. `found`: true if the text has a number.
double NumberAfter(std::string_view text, std::string_view name, bool* found = nullptr) {
  std::string_view rest = After(text, name);
  while (!rest.empty() && (rest[0] == '\'' || rest[0] == '"' || rest[0] == '=' || rest[0] == ' '))
    rest.remove_prefix(1);
  const auto number = NumberAt(rest);
  if (found) *found = number.has_value();
  return number ? number->value : kNoNumber;
}

// "Number of trainable parameters = 4,368": the last count of the line.
int64_t CountAtEnd(std::string_view text) {
  std::string digits(text.substr(text.rfind('=') + 1));
  std::erase(digits, ',');
  return CountOf(digits);
}

// "00:04", "1:02:03": seconds; nullopt if `text` starts with something else.
std::optional<double> Clock(std::string_view text) {
  double seconds = 0;
  for (int parts = 0;; ++parts) {
    size_t end = 0;
    double value = 0;
    while (end < text.size() && IsDigit(text[end])) value = value * 10 + (text[end++] - '0');
    if (end == 0) return std::nullopt;
    seconds = seconds * 60 + value;
    text.remove_prefix(end);
    if (text.empty() || text[0] != ':') return parts > 0 ? std::optional(seconds) : std::nullopt;
    text.remove_prefix(1);
  }
}

struct Bar {
  int64_t done = -1, total = -1;
  double elapsed = 0;
};

// " 25%|##5       | 5/20 [00:04<00:12,  1.17it/s]". A bar with a name is not the training's.
std::optional<Bar> BarIn(std::string_view text) {
  text = Trim(text);
  size_t at = 0;
  while (at < text.size() && IsDigit(text[at])) ++at;
  if (at == 0 || !text.substr(at).starts_with("%|")) return std::nullopt;
  const size_t open = text.rfind('['), slash = text.rfind('/', open);
  if (open == npos || slash == npos) return std::nullopt;
  size_t begin = slash;
  while (begin > 0 && IsDigit(text[begin - 1])) --begin;
  const auto done = CountAt(text.substr(begin, slash - begin)),
             total = CountAt(Trim(text.substr(slash + 1, open - slash - 1)));
  const auto elapsed = Clock(text.substr(open + 1));
  if (!done || !total || !elapsed) return std::nullopt;
  return Bar{*done, *total, *elapsed};
}

}  // namespace

bool TrainerLog::BeginsAnother(std::string_view text) const {
  if (reports_.empty() && std::isnan(runtime_)) return false;
  return text.find(kBegin) != npos || (!std::isnan(runtime_) && text.find("'loss': ") != npos);
}

bool TrainerLog::Take(std::string_view text) {
  if (text.find("'train_runtime': ") != npos) {
    TakeEnd(text);
  } else if (text.find("'eval_loss': ") != npos) {
    const double loss = NumberAfter(text, "'eval_loss': ");
    if (!std::isnan(loss)) validation_loss_ = loss;
  } else if (text.find("'loss': ") != npos) {
    TakeLoss(text);
    return true;
  } else if (text.find("Saving model checkpoint to ") != npos) {
    ++checkpoints_;
  } else if (text.find(" = ") != npos) {
    TakeBanner(text);
  } else {
    TakeBar(text);
  }
  return false;
}

void TrainerLog::TakeBanner(std::string_view text) {
  const int64_t count = CountAtEnd(text);
  if (count <= 0) return;
  for (const auto& [words, field] : {std::pair{"Total train batch size", &RunConfig::gbs},
                                     {"Instantaneous batch size per device = ", &RunConfig::mbs},
                                     {"Gradient Accumulation steps = ", &RunConfig::gas}})
    if (text.find(words) != npos) config_.*field = count;
  if (text.find("Total optimization steps = ") != npos) total_ = count;
  if (text.find("Num Epochs = ") != npos) epochs_ = static_cast<double>(count);
  if (text.find("Number of trainable parameters = ") != npos)
    config_.size_b = static_cast<double>(count) / 1e9;
}

void TrainerLog::TakeLoss(std::string_view text) {
  if (reports_.size() == kMaxReports) {
    for (size_t i = 0; i < kMaxReports / 2; ++i) reports_[i] = reports_[2 * i + 1];
    reports_.resize(kMaxReports / 2);
  }
  Report& report = reports_.emplace_back();
  bool told = false;
  report.loss = NumberAfter(text, "'loss': ", &told);
  report.nan_loss = told && !std::isfinite(report.loss);
  report.grad_norm = NumberAfter(text, "'grad_norm': ");
  report.epoch = NumberAfter(text, "'epoch': ");
  wants_bar_ = true;
}

void TrainerLog::TakeBar(std::string_view text) {
  if (!wants_bar_) return;
  const auto bar = BarIn(text);
  if (!bar) return;
  wants_bar_ = false;
  if (total_ > 0 && bar->total != total_) return;
  total_ = bar->total;
  reports_.back().step = bar->done;
  reports_.back().elapsed = bar->elapsed;
}

void TrainerLog::TakeEnd(std::string_view text) {
  runtime_ = NumberAfter(text, "'train_runtime': ");
  samples_per_second_ = NumberAfter(text, "'train_samples_per_second': ");
  steps_per_second_ = NumberAfter(text, "'train_steps_per_second': ");
  last_epoch_ = NumberAfter(text, "'epoch': ");
}

// Versions before 4.7 have no steps a second; their samples a second are steps
// (transformers/trainer_utils.py, speed_metrics, was given max_steps).
void TrainerLog::FindTotal() {
  if (std::isnan(steps_per_second_)) std::swap(steps_per_second_, samples_per_second_);
  const double steps = std::round(runtime_ * steps_per_second_);
  if (total_ < 0 && steps >= 1 && steps < 1e9) total_ = static_cast<int64_t>(steps);
}

// From the bar, else from the share of the epochs; -1 if neither is known.
int64_t TrainerLog::StepOf(size_t report) const {
  const Report& at = reports_[report];
  if (at.step >= 0) return at.step;
  const double epochs = std::isnan(last_epoch_) ? epochs_ : last_epoch_;
  if (total_ < 0 || !(at.epoch >= 0) || !(epochs > 0)) return -1;
  return std::lround(std::min(1.0, at.epoch / epochs) * static_cast<double>(total_));
}

// Bars show whole seconds: their times are scaled to the sum in the last line. Without bars, or if the clock
// did not move, every step took the mean.
void TrainerLog::AddSamples(TrainingStart& start) const {
  const double mean = runtime_ / static_cast<double>(total_);  // NaN if the log ends before
  double measured = 0;
  int64_t steps = 0;
  int64_t last_step = 0;
  double last_elapsed = 0;
  std::vector<Sample> samples;
  for (size_t i = 0; i < reports_.size(); ++i) {
    const Report& report = reports_[i];
    int64_t step = StepOf(i);
    if (step < 0) step = last_step + 1;  // only the order of reports is known
    if (step > INT32_MAX || (!samples.empty() && step <= last_step)) continue;
    Sample sample{.seconds = kNoNumber,
                  .iteration = static_cast<int32_t>(step),
                  .loss = static_cast<float>(report.loss),
                  .grad_norm = static_cast<float>(report.grad_norm),
                  .nans = static_cast<uint16_t>(report.nan_loss)};
    if (!std::isnan(report.elapsed)) {
      sample.seconds = (report.elapsed - last_elapsed) / static_cast<double>(step - last_step);
      measured += report.elapsed - last_elapsed;
      steps += step - last_step;
      last_elapsed = report.elapsed;
    }
    last_step = step;
    samples.push_back(sample);
  }
  const bool scaled = measured > 0 && steps > 0 && !std::isnan(mean);
  for (Sample& sample : samples) {
    if (scaled && !std::isnan(sample.seconds))
      sample.seconds *= mean * static_cast<double>(steps) / measured;
    else if (!std::isnan(mean))
      sample.seconds = mean;
    start.series.Add(sample);
  }
}

void TrainerLog::Finish(TrainingStart& start) {
  FillFrom(config_, start.config);
  if (!std::isnan(validation_loss_)) start.validation_loss = validation_loss_;
  if (reports_.empty() && std::isnan(runtime_)) return;
  FindTotal();
  if (!std::isnan(runtime_)) start.done = true;
  if (start.source > SampleSource::kTrainer) return;
  start.series.Clear();
  start.source = SampleSource::kTrainer;
  AddSamples(start);
  start.checkpoints = std::max(start.checkpoints, checkpoints_);
  if (total_ > 0) start.total = total_;
  if (start.series.empty()) return;
  start.first_iteration = start.series.front().iteration;
  start.last_loss = reports_.back().loss;
  start.last_grad_norm = reports_.back().grad_norm;
  if (start.config.gbs || std::isnan(samples_per_second_)) return;
  const double batch = samples_per_second_ * runtime_ / static_cast<double>(total_);
  if (batch > 0.5 && batch < 1e8 && std::abs(batch - std::round(batch)) < 0.02 * batch)
    start.config.gbs = std::llround(batch);
}

}  // namespace cairn
