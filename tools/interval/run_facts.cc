// A start lasted until its end, or if it was killed, until the last thing that is known of it: a save, or the
// step that the next start resumed from. What survived a failure is known by the tier that the next start
// resumed from, and by the hosts that it lacks. The last start, if it has not ended, may still run: it counts
// as time, and not as a failure.

#include "tools/interval/run_facts.h"

#include <algorithm>
#include <cmath>

#include "ckpt/io/directory_facts.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/health.h"
#include "ckpt/step/find_step.h"
#include "tools/place/place.h"
#include "tools/report/training_run.h"

namespace cairn {
namespace {

constexpr double kLongestSave = 86400;

std::optional<double> MedianOf(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, half);
  return *half;
}

std::string Saves(size_t saves, const char* where) {
  return fmt::format("{} save{} in its {}", saves, saves == 1 ? "" : "s", where);
}

struct Start {
  const RunEvent* start;
  const RunEvent* end = nullptr;
  double last_known = 0;
};

std::vector<Start> StartsOf(const std::vector<RunEvent>& events) {
  std::vector<Start> starts;
  for (const RunEvent& event : events) {
    if (event.kind == RunEventKind::kStart) {
      starts.push_back({&event, nullptr, event.time});
    } else if (!starts.empty()) {
      starts.back().last_known = std::max(starts.back().last_known, event.time);
      if (event.kind == RunEventKind::kEnd) starts.back().end = &event;
    }
  }
  return starts;
}

int64_t Missing(const std::vector<std::string>& hosts, const std::vector<std::string>& later) {
  return std::ranges::count_if(hosts, [&](const auto& host) { return std::ranges::count(later, host) == 0; });
}

// Counts the failure of `failed`, from which `next` is the restart; null: none is known.
void TakeFailure(const RunEvent& failed, const RunEvent* next, MeasuredRun& measured) {
  if (next == nullptr) {
    ++measured.failures.of_unknown_kind;
    return;
  }
  int64_t lost = Missing(failed.hosts, next->hosts);
  if (failed.local && next->tier == "run") lost = std::max<int64_t>(lost, 2);  // no local steps were left
  ++measured.failures.seen[static_cast<size_t>(std::min<int64_t>(lost, 2))];
  if (lost >= 2) measured.several_lost.push_back(lost);
}

struct DatedStep {
  int64_t step;
  double time;
  std::string session;
};

// The steps with the times of their manifests; of another system, of their directories.
std::vector<DatedStep> DatedSteps(FileSystem& fs, const Place& place, MeasuredRun& measured) {
  std::vector<DatedStep> dated;
  std::vector<double> saves;
  for (const FoundStep& found : place.steps) {
    if (!found.step) continue;
    const Result<FileInfo> info = fs.Stat(found.native ? JoinPath(found.path, kManifestName) : found.path);
    if (!info.ok()) continue;
    DatedStep step{*found.step, static_cast<double>(info->modified_unix_nanoseconds) / 1e9, ""};
    const Result<Manifest> manifest = found.native ? ReadManifest(fs, found.path) : NotFound("");
    if (manifest.ok()) {
      measured.step_bytes = static_cast<double>(manifest->bytes());
      measured.ranks =
          std::max<int64_t>(measured.ranks, int64_t{manifest->topology.stage_size()} * manifest->topology.pp);
      if (const auto health = HealthOf(manifest->state)) step.session = health->session;
      const Result<DirectoryFacts> facts = FactsOf(fs, found.path);
      const double born = facts.ok() ? static_cast<double>(facts->born_unix_nanoseconds) / 1e9 : 0;
      if (born > 0 && step.time > born && step.time < born + kLongestSave) saves.push_back(step.time - born);
    }
    dated.push_back(std::move(step));
  }
  if (const auto seconds = MedianOf(saves))
    measured.run = TierCost{.kind = TierKind::kRun,
                            .stall = *seconds,
                            .save = *seconds,
                            .from = "the times of its steps, as if each save stopped the training"};
  return dated;
}

}  // namespace

void TakeEvents(const std::vector<RunEvent>& events, double newest_step_time, MeasuredRun& measured) {
  const std::vector<Start> starts = StartsOf(events);
  if (starts.empty()) return;
  measured.starts = static_cast<int64_t>(starts.size());
  measured.first_start = starts.front().start->time;
  measured.nodes = std::max<int64_t>(1, static_cast<int64_t>(starts.back().start->hosts.size()));
  measured.ranks = starts.back().start->ranks;
  std::vector<double> restarts, stalls, saves;
  for (size_t i = 0; i < starts.size(); ++i) {
    const RunEvent& start = *starts[i].start;
    const RunEvent* next = i + 1 < starts.size() ? starts[i + 1].start : nullptr;
    double until = std::max(starts[i].last_known, next != nullptr ? next->step_time : newest_step_time);
    if (starts[i].end != nullptr) until = starts[i].end->time;
    if (next != nullptr) until = std::min(until, std::max(start.time, next->time - next->seconds));
    measured.failures.seconds += std::max(0.0, until - start.time);
    const bool failed = starts[i].end != nullptr ? starts[i].end->how == "failed" : next != nullptr;
    if (!failed) continue;
    TakeFailure(start, next, measured);
    if (next == nullptr) continue;
    const bool end_is_known = starts[i].end != nullptr;
    restarts.push_back(end_is_known ? std::max(0.0, next->time - starts[i].end->time) : next->seconds);
  }
  for (const RunEvent& event : events) {
    measured.failed_saves += event.kind == RunEventKind::kNotSaved;
    if (event.kind != RunEventKind::kSave) continue;
    stalls.push_back(event.stall);
    saves.push_back(event.seconds);
  }
  measured.restart_seconds = MedianOf(restarts);
  if (const auto save = MedianOf(saves))
    measured.run = TierCost{.kind = TierKind::kRun,
                            .stall = MedianOf(stalls).value_or(0),
                            .save = *save,
                            .from = Saves(saves.size(), "events")};
}

double FailuresBeyondLocal(FileSystem& fs, const std::string& run_dir, bool parity) {
  MeasuredRun measured;
  if (const auto events = ReadEvents(fs, run_dir); events.ok()) TakeEvents(*events, 0, measured);
  const FailureRates rates = RatesOf(measured.failures, std::max<int64_t>(1, measured.nodes), std::nullopt);
  return rates.of[2].expected + (parity ? 0 : rates.of[1].expected);
}

Status MeasureRun(FileSystem& fs, const std::string& run_dir, MeasuredRun& measured) {
  CAIRN_ASSIGN_OR_RETURN(const Place place, PlaceAt(fs, run_dir));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<RunEvent> events, ReadEvents(fs, run_dir));
  const std::vector<DatedStep> steps = DatedSteps(fs, place, measured);
  if (steps.empty() && events.empty())
    return NotFound("{}: no run; it has neither steps nor events", run_dir);
  std::vector<double> paces;
  for (size_t i = 1; i < steps.size(); ++i) {
    const auto apart = static_cast<double>(steps[i].step - steps[i - 1].step);
    const double seconds = steps[i].time - steps[i - 1].time;
    if (apart > 0 && seconds > 0 && steps[i].session == steps[i - 1].session)
      paces.push_back(seconds / apart);
  }
  measured.step_seconds = MedianOf(paces);
  TakeEvents(events, steps.empty() ? 0 : steps.back().time, measured);
  return OkStatus();
}

Status MeasureLogs(const std::vector<std::string>& logs, MeasuredRun& measured) {
  std::vector<TrainingStart> starts;
  for (const std::string& path : logs) {
    CAIRN_ASSIGN_OR_RETURN(TrainingLog log, ReadTrainingLog(path));
    for (TrainingStart& start : log.starts) {
      if (start.series.empty() && !start.failure)
        return InvalidArgument("{}: not the log of a training: {}", path, start.why_empty);
      starts.push_back(std::move(start));
    }
  }
  SaveTimes memory, disk, run;
  std::vector<double> paces, restarts;
  double seconds = 0;
  int64_t failures = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const TrainingStart& start = starts[i];
    const double interval = static_cast<double>(LogInterval(start));
    for (const Sample& sample : start.series.samples()) {
      if (std::isnan(sample.seconds)) continue;
      paces.push_back(sample.seconds);
      seconds += sample.seconds * interval * sample.lines;
    }
    memory.Add(start.memory_saves);
    disk.Add(start.disk_saves);
    run.Add(start.run_saves);
    if (start.run_saves.saves == 0 && start.memory_saves.saves + start.disk_saves.saves == 0 &&
        start.checkpoints > 0)
      run.Add({start.checkpoints, start.checkpoint_seconds, start.checkpoint_seconds});
    const bool last = i + 1 == starts.size();
    failures += start.failure || (!start.done && !last);
    if (!last && start.ended_unix > 0 && starts[i + 1].began_unix > start.ended_unix)
      restarts.push_back(static_cast<double>(starts[i + 1].began_unix - start.ended_unix));
  }
  const auto cost = [&](TierKind kind, const SaveTimes& times, std::optional<TierCost>& tier) {
    if (times.saves == 0 || times.whole_seconds <= 0) return;
    const auto saves = static_cast<double>(times.saves);
    tier = TierCost{.kind = kind,
                    .stall = times.stall_seconds / saves,
                    .save = times.whole_seconds / saves,
                    .from = Saves(static_cast<size_t>(times.saves), "logs")};
  };
  cost(TierKind::kMemory, memory, measured.memory);
  cost(TierKind::kDisk, disk, measured.disk);
  cost(TierKind::kRun, run, measured.run);
  if (const auto pace = MedianOf(paces)) measured.step_seconds = pace;
  if (measured.starts > 0) return OkStatus();
  measured.starts = static_cast<int64_t>(starts.size());
  measured.failures = {.of_unknown_kind = failures, .seconds = seconds};
  if (const auto restart = MedianOf(restarts)) measured.restart_seconds = restart;
  return OkStatus();
}

}  // namespace cairn
