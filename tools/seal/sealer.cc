// Two lists of the files, one before and one after they were read, must be equal to the nanosecond: otherwise
// a writer is still active. The files are synced before they are read, and the seal after that, so that a
// seal that exists after a power loss has its files. The steps of a run are taken from the newest on: a job
// would resume from it.

#include "tools/seal/sealer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <ranges>
#include <set>

#include "ckpt/base/backoff.h"
#include "ckpt/base/posix_error.h"
#include "ckpt/base/stopwatch.h"
#include "ckpt/io/replace_file.h"
#include "tools/place/finished.h"
#include "tools/place/place.h"
#include "tools/seal/read_files.h"

namespace cairn {
namespace {

// Empty if the lists are equal.
std::string FirstDifference(const std::string& directory, const std::vector<StepFile>& before,
                            const std::vector<StepFile>& after) {
  for (size_t i = 0; i < before.size() && i < after.size(); ++i)
    if (before[i] != after[i])
      return JoinPath(directory, std::min(before[i].name, after[i].name)) + " changed while it was sealed";
  if (before.size() == after.size()) return {};
  const auto& longer = before.size() > after.size() ? before : after;
  return JoinPath(directory, longer[std::min(before.size(), after.size())].name) +
         " appeared or went away while it was sealed";
}

// Before hours of reading, what would stop the seal in the end.
Status CheckMayWrite(FileSystem& fs, const std::string& directory, size_t files) {
  if (fs.HasOtherProcesses() && ::access(directory.c_str(), W_OK | X_OK) != 0)
    return IoError("{}: no permission to write the seal into it", directory);
  constexpr uint64_t kSealBytesPerFile = 512;
  const auto free = fs.FreeBytes(directory);
  if (free.ok() && *free < (files + 16) * kSealBytesPerFile)
    return NoSpace("{}: no space left for the seal", directory);
  return OkStatus();
}

Status SyncFolders(FileSystem& fs, const std::string& directory, const std::vector<StepFile>& files) {
  std::set<std::string> folders = {""};
  for (const StepFile& file : files) folders.insert(FolderOf(file.name));
  for (const std::string& folder : folders)
    CAIRN_RETURN_IF_ERROR(fs.SyncDir(folder.empty() ? directory : JoinPath(directory, folder)));
  return OkStatus();
}

class StepSealer {
 public:
  StepSealer(FileSystem& fs, const FoundStep& step, const SealOptions& options)
      : fs_(fs), step_(step), options_(options) {}

  Result<SealResult> Run() {
    CAIRN_ASSIGN_OR_RETURN(files_, ListStepFiles(fs_, step_.path));
    result_.unfinished =
        WhyUnfinished(fs_, step_, files_, options_.strict, std::time(nullptr), options_.quiet_seconds);
    if (!result_.unfinished.empty()) return Ended(SealOutcome::kUnfinished);
    if (!options_.dry_run && !options_.check_only)
      CAIRN_RETURN_IF_ERROR(CheckMayWrite(fs_, step_.path, files_.size()));
    StepParts parts = CheckStepParts(fs_, step_.path, files_, options_.open);
    result_.problems = parts.problems;
    if (!result_.problems.empty() && !options_.anyway) return Ended(SealOutcome::kProblems);
    Describe(parts);
    if (options_.dry_run) return Ended(SealOutcome::kSealed);
    CAIRN_RETURN_IF_ERROR(Read(std::move(parts.records)));
    if (!result_.problems.empty() && !options_.anyway) return Ended(SealOutcome::kProblems);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<StepFile> after, ListStepFiles(fs_, step_.path));
    result_.unfinished = FirstDifference(step_.path, files_, after);
    if (!result_.unfinished.empty()) return Ended(SealOutcome::kUnfinished);
    if (options_.check_only) return Ended(SealOutcome::kSealed);
    CAIRN_RETURN_IF_ERROR(SyncFolders(fs_, step_.path, files_));
    for (const Problem& problem : result_.problems) result_.seal.problems.push_back(ToString(problem));
    CAIRN_RETURN_IF_ERROR(WriteSealFile(fs_, step_.path, result_.seal));
    return Ended(SealOutcome::kSealed);
  }

 private:
  SealResult Ended(SealOutcome outcome) {
    result_.outcome = outcome;
    return std::move(result_);
  }

  void Describe(const StepParts& parts) {
    Seal& seal = result_.seal;
    seal.system = parts.system;
    seal.step = step_.step;
    seal.sealed_unix_seconds = std::time(nullptr);
    seal.whole = parts.whole;
    seal.untold = parts.untold;
    seal.notes = parts.notes;
    seal.allowed = options_.open.allow;
    for (const StepFile& file : files_)
      seal.files.push_back(
          {.name = file.name, .bytes = file.bytes, .modified_unix_seconds = file.modified_unix_seconds});
  }

  Status Read(std::map<std::string, std::vector<ZipRecord>> records) {
    std::vector<FileToRead> to_read;
    for (const SealedFile& file : result_.seal.files)
      to_read.push_back({file.name, file.bytes, std::move(records[file.name])});
    const uint64_t bytes = result_.seal.bytes();
    const std::vector<FileRead> read = ReadFiles(fs_, step_.path, to_read,
                                                 {.jobs = options_.jobs,
                                                  .sync = true,
                                                  .progress =
                                                      [&](uint64_t done) {
                                                        if (options_.progress) options_.progress(done, bytes);
                                                      },
                                                  .stop = options_.stop});
    for (size_t i = 0; i < read.size(); ++i) {
      result_.seal.files[i].digest = read[i].digest;
      const Status& status = read[i].status;
      if (status.kind() == StatusKind::kCorrupt)
        result_.problems.push_back({JoinPath(step_.path, to_read[i].name), {}, "", status.message()});
      else if (!status.ok())
        return status;
    }
    return OkStatus();
  }

  FileSystem& fs_;
  const FoundStep& step_;
  const SealOptions& options_;
  std::vector<StepFile> files_;
  SealResult result_;
};

bool IsStopped(const SealOptions& options) { return options.stop && *options.stop; }

void SleepUnlessStopped(double seconds, const SealOptions& options) {
  for (Backoff wait; wait.elapsed() < std::chrono::duration<double>(seconds) && !IsStopped(options);)
    wait.Pause();
}

// Why a step is not whole; empty if it is.
Result<std::string> WhyNotWhole(FileSystem& fs, const FoundStep& step, SealDepth depth, int jobs,
                                const TellLine& tell) {
  if (!step.sealed) return step.path + ": it has no seal";
  const auto seal = ReadSeal(fs, step.path);
  if (IsRefusal(seal.status())) return seal.status();
  if (!seal.ok()) return seal.status().message();
  if (!seal->problems.empty())
    return fmt::format("{}: sealed with --anyway, in spite of: {}", step.path, seal->problems.front());
  const SealReport report = CheckSeal(fs, step.path, *seal, depth, jobs);
  for (const Problem& problem : report.problems) {
    if (std::ranges::find(report.added, problem.file) == report.added.end()) return ToString(problem);
    tell("note: " + ToString(problem));
  }
  CAIRN_RETURN_IF_ERROR(report.trouble);
  for (const std::string& untold : UncheckedIn(*seal, {}))
    tell("note: not checked when it was sealed: " + untold);
  return std::string();
}

}  // namespace

Result<SealResult> SealForeignStep(FileSystem& fs, const FoundStep& step, const SealOptions& options) {
  return StepSealer(fs, step, options).Run();
}

void WaitUntilQuiet(FileSystem& fs, const FoundStep& step, const SealOptions& options, const TellLine& tell) {
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
              const std::function<void(const FoundStep&)>& seal) {
  std::map<std::string, std::vector<StepFile>> tried;  // by the step's path
  for (; !IsStopped(options); SleepUnlessStopped(static_cast<double>(interval_seconds), options)) {
    const Result<Place> place = PlaceAt(fs, run);
    if (!place.ok() || place->kind != PlaceKind::kForeignRun) continue;
    for (const FoundStep& step : place->steps | std::views::reverse) {
      if (IsStopped(options) || step.sealed) continue;
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

Result<std::optional<FoundStep>> NewestWholeStep(FileSystem& fs, const std::string& run, SealDepth depth,
                                                 int jobs, const TellLine& tell) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<FoundStep> steps, StepsToSeal(fs, run));
  for (const FoundStep& step : steps | std::views::reverse) {
    CAIRN_ASSIGN_OR_RETURN(const std::string why, WhyNotWhole(fs, step, depth, jobs, tell));
    if (why.empty()) return std::optional(step);
    tell("passed over: " + why);
  }
  return std::optional<FoundStep>();
}

}  // namespace cairn
