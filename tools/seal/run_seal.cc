// Steps are looked at from the newest on: it is the one that a job would resume from.

#include "tools/seal/run_seal.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <ranges>
#include <thread>

#include "ckpt/base/posix_error.h"
#include "ckpt/base/stopwatch.h"

namespace cairn {
namespace {

bool IsStopped(const SealOptions& options) { return options.stop && *options.stop; }

void SleepUnlessStopped(double seconds, const SealOptions& options) {
  constexpr double kSlice = 0.1;
  for (double slept = 0; slept < seconds && !IsStopped(options); slept += kSlice)
    std::this_thread::sleep_for(std::chrono::duration<double>(kSlice));
}

// Why a step is not whole; empty if it is.
Result<std::string> WhyNotWhole(FileSystem& fs, const ForeignStep& step, SealDepth depth, int jobs,
                                const TellLine& tell) {
  if (!HasSeal(fs, step.path)) return step.path + ": it has no seal";
  const auto seal = ReadSeal(fs, step.path);
  if (IsRefusal(seal.status())) return seal.status();
  if (!seal.ok()) return seal.status().message();
  if (!seal->problems.empty())
    return fmt::format("{}: sealed with --anyway, in spite of: {}", step.path, seal->problems.front());
  const SealReport report = CheckSeal(fs, step.path, *seal, depth, jobs);
  for (const Problem& problem : report.problems) {
    if (std::ranges::find(report.added, problem.file) == report.added.end()) return FileProblemText(problem);
    tell("note: " + FileProblemText(problem));
  }
  CAIRN_RETURN_IF_ERROR(report.trouble);
  return std::string();
}

}  // namespace

void WaitUntilQuiet(FileSystem& fs, const ForeignStep& step, const SealOptions& options,
                    const TellLine& tell) {
  constexpr double kSilent = 1;  // seconds, of a short wait
  const Stopwatch waited;
  const auto least = static_cast<double>(options.quiet_seconds);
  std::vector<StepFile> seen;
  double changed = 0;
  for (bool told = false; !IsStopped(options) && waited.Seconds() < 10 * least;
       SleepUnlessStopped(0.2, options)) {
    auto files = ListStepFiles(fs, step.path);
    if (!files.ok()) return;
    if (*files != seen) changed = waited.Seconds();
    seen = *std::move(files);
    const int64_t now = std::time(nullptr);
    const StepFile* const young = YoungFile(seen, now, options.quiet_seconds);
    const StepFile* const ahead = FileOfTheFuture(seen, now, options.quiet_seconds);
    if (!young && (!ahead || waited.Seconds() - changed >= least)) return;
    if (told || waited.Seconds() < kSilent) continue;
    told = true;
    tell(fmt::format("note: {} {}; waiting for {} s without a change",
                     JoinPath(step.path, young ? young->name : ahead->name),
                     young ? "was written just now" : "has a time in the future, so a clock is wrong",
                     options.quiet_seconds));
  }
}

void WatchRun(FileSystem& fs, const std::string& run, const SealOptions& options, int64_t interval_seconds,
              const std::function<void(const ForeignStep&)>& seal) {
  std::map<std::string, std::vector<StepFile>> tried;  // by the step's path
  for (; !IsStopped(options); SleepUnlessStopped(static_cast<double>(interval_seconds), options)) {
    const std::vector<ForeignStep> steps = ListRunSteps(fs, run);
    for (const ForeignStep& step : steps | std::views::reverse) {
      if (IsStopped(options) || HasSeal(fs, step.path)) continue;
      const auto files = ListStepFiles(fs, step.path);
      if (!files.ok()) continue;  // removed meanwhile, say
      const std::string unfinished =
          WhyUnfinished(fs, step, *files, /*strict=*/true, std::time(nullptr), options.quiet_seconds);
      if (!unfinished.empty()) continue;
      const auto [before, first_try] = tried.try_emplace(step.path);
      if (!first_try && before->second == *files) continue;
      before->second = *files;
      seal(step);
    }
  }
}

Result<std::optional<ForeignStep>> NewestWholeStep(FileSystem& fs, const std::string& run, SealDepth depth,
                                                   int jobs, const TellLine& tell) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ForeignStep> steps, ListForeignSteps(fs, run));
  for (const ForeignStep& step : steps | std::views::reverse) {
    CAIRN_ASSIGN_OR_RETURN(const std::string why, WhyNotWhole(fs, step, depth, jobs, tell));
    if (why.empty()) return std::optional(step);
    tell("passed over: " + why);
  }
  return std::optional<ForeignStep>();
}

}  // namespace cairn
