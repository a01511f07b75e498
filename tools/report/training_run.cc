// A start continues a run if their configurations agree, and it begins after the run's first iteration and at
// most one after its last; the run's later iterations are then replaced. In one file also: a start from the
// beginning after a failure (the job was requeued before its first checkpoint), and starts that failed before
// their first iteration.
#include "tools/report/training_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "tools/report/config_name.h"

namespace cairn {
namespace {

bool Finished(const TrainingStart& start) { return start.reached_total() || start.done; }

bool SameTotal(const TrainingStart& a, const TrainingStart& b) {
  return a.total < 0 || b.total < 0 || a.total == b.total;
}

// False if the samples consumed at the first lines show that one cannot continue the other.
bool SamplesAgree(const TrainingStart& run, const TrainingStart& start) {
  const int64_t batch = run.series.front().global_batch, later_batch = start.series.front().global_batch;
  if (batch <= 0 || later_batch <= 0 || run.series.back().global_batch != batch) return true;  // it grows
  if (run.first_consumed < 0 || start.first_consumed < 0) return true;
  const int64_t interval = LogInterval(start);
  return start.first_consumed - run.first_consumed ==
         (start.first_iteration - interval - run.first_iteration) * batch + interval * later_batch;
}

// Begins after the first iteration, and not beyond the last one of the run.
bool Continues(const TrainingStart& run, const TrainingStart& start) {
  const int64_t interval = std::max(LogInterval(run), LogInterval(start));
  return start.first_iteration > interval && start.first_iteration > run.first_iteration &&
         start.first_iteration <= run.series.back().iteration + interval && SamplesAgree(run, start);
}

bool ContinuesInFile(const TrainingStart& run, const TrainingStart& start) {
  if (!Agree(run.config, start.config)) return false;
  if (start.series.empty()) return !Finished(run) && start.failure.has_value() && SameTotal(run, start);
  if (run.series.empty()) return run.failure.has_value();
  if (start.first_iteration > LogInterval(start) && start.first_iteration > run.first_iteration)
    return SamplesAgree(run, start);
  return !Finished(run) && run.failure.has_value() && SameTotal(run, start);
}

bool ContinuesAcrossFiles(const TrainingRun& run, const TrainingRun& later) {
  if (run.sum.series.empty() || later.sum.series.empty()) return false;
  return Agree(run.sum.config, later.sum.config) && Continues(run.sum, later.sum) &&
         SameTotal(run.sum, later.sum) && Agree(ConfigFromName(run.files[0]), ConfigFromName(later.files[0]));
}

// Removes the iterations beyond the checkpoint from which the later start continued.
void CutRedone(int32_t from, TrainingRun& run) {
  std::vector<Sample> redone;
  const int64_t interval = LogInterval(run.sum);
  run.sum.series.CutFrom(from, redone);
  for (const Sample& sample : redone) {
    const double iterations = static_cast<double>(interval * sample.lines);
    run.redone_iterations += interval * sample.lines;
    if (!std::isnan(sample.seconds)) run.redone_seconds += sample.seconds * iterations;
  }
}

// The two functions name each member of what they add: one that is new does not compile here.
void AddStart(const TrainingStart& later, TrainingRun& run) {
  const auto& [file, config, source, series, first_iteration, total, first_consumed, skipped, last_loss,
               last_grad_norm, validation_loss, tflops_sum, tflops_lines, allocated_gib, reserved_gib,
               checkpoints, checkpoint_seconds, longest_checkpoint_seconds, memory_saves, disk_saves,
               run_saves, failure, why_empty, done, began, ended] = later;
  TrainingStart& sum = run.sum;
  if (began >= 0 && sum.ended_unix >= 0)
    run.gap_seconds += static_cast<double>(std::max<int64_t>(0, began - sum.ended_unix));
  if (!series.empty()) {
    if (sum.series.empty()) sum.first_consumed = first_consumed;
    CutRedone(first_iteration, run);
    sum.series.Append(series);
    sum.first_iteration = sum.series.front().iteration;
    sum.source = source;
    sum.last_loss = last_loss;
    sum.last_grad_norm = last_grad_norm;
  }
  FillFrom(config, sum.config);
  if (total > 0) sum.total = total;
  sum.skipped_so_far += skipped;
  sum.logged_tflops_sum += tflops_sum;
  sum.logged_tflops_lines += tflops_lines;
  sum.allocated_gib = std::max(sum.allocated_gib, allocated_gib);
  sum.reserved_gib = std::max(sum.reserved_gib, reserved_gib);
  sum.checkpoints += checkpoints;
  sum.checkpoint_seconds += checkpoint_seconds;
  sum.longest_checkpoint_seconds = std::max(sum.longest_checkpoint_seconds, longest_checkpoint_seconds);
  sum.memory_saves.Add(memory_saves);
  sum.disk_saves.Add(disk_saves);
  sum.run_saves.Add(run_saves);
  if (!std::isnan(validation_loss)) sum.validation_loss = validation_loss;
  sum.failure = failure;
  sum.done = done;
  if (began >= 0 && sum.began_unix < 0) sum.began_unix = began;
  if (ended >= 0) sum.ended_unix = ended;
}

void Append(const TrainingRun& later, TrainingRun& run) {
  const auto& [files, sum, starts, failures, redone_iterations, redone_seconds, gap_seconds] = later;
  if (run.sum.failure) run.failures.push_back(*run.sum.failure);
  run.failures.insert(run.failures.end(), failures.begin(), failures.end());
  AddStart(sum, run);
  run.starts += starts;
  run.redone_iterations += redone_iterations;
  run.redone_seconds += redone_seconds;
  run.gap_seconds += gap_seconds;
  for (const std::string& file : files)
    if (std::ranges::find(run.files, file) == run.files.end()) run.files.push_back(file);
}

TrainingRun RunOf(TrainingStart start) { return {.files = {start.file}, .sum = std::move(start)}; }

// A start without facts counts only if there are no others.
bool HasNoFacts(const TrainingStart& start) { return start.series.empty() && !start.failure; }

std::vector<TrainingRun> JoinFile(TrainingLog log, bool join) {
  std::vector<TrainingRun> runs;
  const bool all_empty = std::ranges::all_of(log.starts, HasNoFacts);
  for (TrainingStart& start : log.starts) {
    if (!all_empty && HasNoFacts(start)) continue;
    if (all_empty && !runs.empty()) break;
    if (join && !runs.empty() && ContinuesInFile(runs.back().sum, start))
      Append(RunOf(std::move(start)), runs.back());
    else
      runs.push_back(RunOf(std::move(start)));
  }
  return runs;
}

void JoinAcrossFiles(std::vector<TrainingRun>& runs) {
  std::vector<size_t> order(runs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return runs[i].sum.first_iteration; });
  std::vector<size_t> heads;
  for (const size_t i : order) {
    size_t best = SIZE_MAX;
    for (const size_t head : heads)  // the one that ends earliest wins
      if (runs[head].files != runs[i].files && ContinuesAcrossFiles(runs[head], runs[i]) &&
          (best == SIZE_MAX ||
           runs[head].sum.series.back().iteration < runs[best].sum.series.back().iteration))
        best = head;
    if (best == SIZE_MAX) {
      heads.push_back(i);
    } else {
      Append(std::exchange(runs[i], {}), runs[best]);
    }
  }
  std::erase_if(runs, [](const TrainingRun& run) { return run.files.empty(); });
}

}  // namespace

int64_t LogInterval(const TrainingStart& start) {
  const std::vector<Sample>& samples = start.series.samples();
  std::map<int64_t, size_t> steps;
  const size_t looked_at = std::min<size_t>(samples.size(), 1000);
  for (size_t i = 1; i < looked_at; ++i)
    ++steps[(int64_t{samples[i].iteration} - samples[i - 1].iteration) / samples[i].lines];
  if (steps.empty())
    return std::max<int64_t>(1,
                             std::min<int64_t>(start.config.log_interval.value_or(1), start.first_iteration));
  const auto usual = std::ranges::max_element(steps, {}, [](const auto& step) { return step.second; });
  return std::max<int64_t>(1, usual->first);
}

std::vector<TrainingRun> JoinRuns(std::vector<TrainingLog> logs, bool join) {
  std::vector<TrainingRun> runs;
  for (TrainingLog& log : logs)
    for (TrainingRun& run : JoinFile(std::move(log), join)) runs.push_back(std::move(run));
  if (join) JoinAcrossFiles(runs);
  return runs;
}

}  // namespace cairn
