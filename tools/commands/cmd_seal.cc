// Three jobs of one verb: seal existing steps, watch a run and seal each step once its writer is done, and
// find the newest sealed step that is whole. Steps are sealed from the newest on: it is the one that a
// job would resume from.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <thread>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/posix_error.h"
#include "ckpt/base/stopwatch.h"
#include "convert/formats/systems.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/commands/commands.h"
#include "tools/seal/publish.h"
#include "tools/seal/seal_check.h"
#include "tools/seal/sealer.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct SealVerbOptions {
  std::vector<std::string> directories;
  std::string publish;  // the final name of the one directory; empty: it stays where it is
  OpenOptions open;
  bool newest = false;
  bool watch = false;
  bool hash = false;
  bool again = false;
  bool anyway = false;
  bool dry_run = false;
  bool json = false;
  int jobs = 2;
  int64_t settle_seconds = 5;
  int64_t interval_seconds = 10;
};

// Set by SIGINT and SIGTERM: a read ends, and nothing is written after it.
std::atomic<bool> seal_stop = false;

void StopSealing(int) { seal_stop = true; }

void CatchSealSignals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, StopSealing);
}

// Ends early if a signal asks for it.
void SleepUnlessStopped(double seconds) {
  constexpr double kSlice = 0.1;
  for (double slept = 0; slept < seconds && !seal_stop; slept += kSlice)
    std::this_thread::sleep_for(std::chrono::duration<double>(kSlice));
}

// For a problem of a whole file.
std::string SealProblemText(const Problem& problem) {
  return fmt::format("{}: {}", problem.file, problem.what);
}

// Waits while files are younger than `seconds`; in the end one may still be, of a writer that writes on. If a
// clock is wrong, the times show nothing, and the files must stay unchanged for the same time.
void WaitUntilQuiet(FileSystem& fs, const ForeignStep& step, int64_t seconds) {
  constexpr double kSilent = 1;  // seconds, of a short wait
  const Stopwatch waited;
  const double least = static_cast<double>(seconds), most = 10 * least;
  std::vector<StepFile> seen;
  double changed = 0;
  for (bool told = false; !seal_stop && waited.Seconds() < most; SleepUnlessStopped(0.2)) {
    auto files = ListStepFiles(fs, step.path);
    if (!files.ok()) return;
    if (*files != seen) changed = waited.Seconds();
    seen = *std::move(files);
    const int64_t now = std::time(nullptr);
    const StepFile* const young = YoungFile(seen, now, seconds);
    const StepFile* const ahead = FileOfTheFuture(seen, now, seconds);
    if (!young && (!ahead || waited.Seconds() - changed >= least)) return;
    if (told || waited.Seconds() < kSilent) continue;
    told = true;
    PrintProblem(fmt::format("note: {} {}; waiting for {} s without a change",
                             JoinPath(step.path, young ? young->name : ahead->name),
                             young ? "was written just now" : "has a time in the future, so a clock is wrong",
                             seconds));
  }
}

class SealVerb {
 public:
  explicit SealVerb(const SealVerbOptions& options) : options_(options), fs_(FileSystem::Posix()) {}

  Result<int> Run() {
    if (options_.newest) return Newest();
    CatchSealSignals();
    if (options_.watch) return Watch();
    for (const std::string& directory : options_.directories)
      CAIRN_RETURN_IF_ERROR(options_.publish.empty() ? SealAll(directory) : SealAndPublish(directory));
    if (options_.json) PrintJson(list_);
    return code_;
  }

 private:
  SealOptions OptionsFor(bool strict) const {
    return {.open = options_.open,
            .jobs = options_.jobs,
            .quiet_seconds = options_.settle_seconds,
            .strict = strict,
            .anyway = options_.anyway,
            .dry_run = options_.dry_run,
            .stop = &seal_stop};
  }

  Status SealAll(const std::string& directory) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<ForeignStep> steps, ListForeignSteps(fs_, directory));
    const bool strict = steps.size() != 1 || steps[0].path != directory;
    std::ranges::reverse(steps);
    for (const ForeignStep& step : steps) CAIRN_RETURN_IF_ERROR(SealOne(step, strict));
    return OkStatus();
  }

  // The seal has the number of the final name.
  Status SealAndPublish(const std::string& directory) {
    const std::string from(WithoutSlashes(directory)), to(WithoutSlashes(options_.publish));
    CAIRN_RETURN_IF_ERROR(CheckPublish(fs_, from, to));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<ForeignStep> steps, ListForeignSteps(fs_, from));
    if (steps.size() != 1 || steps[0].path != from)
      return InvalidArgument("{}: a run; --publish takes one step", from);
    const auto named = ParseForeignStep(to.substr(to.find_last_of('/') + 1));
    CAIRN_RETURN_IF_ERROR(SealOne({from, named ? named->step : steps[0].step}, false));
    if (code_ != kExitDone || options_.dry_run) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const bool replaced, PublishDirectory(fs_, from, to));
    if (options_.json)
      list_.back()["published"] = to;
    else
      PrintLine("{}: published{}", to, replaced ? fmt::format("; {} has the files of before", from) : "");
    return OkStatus();
  }

  Status SealOne(const ForeignStep& step, bool strict) {
    if (HasSeal(fs_, step.path) && !options_.again) return TellSealed(step);
    WaitUntilQuiet(fs_, step, options_.settle_seconds);
    return Seal(step, OptionsFor(strict));
  }

  Status Seal(const ForeignStep& step, SealOptions options) {
    const Stopwatch taken;
    std::unique_ptr<Progress> progress;
    options.progress = [&](uint64_t done, uint64_t bytes) {
      if (!progress) progress = std::make_unique<Progress>("sealing " + step.path, bytes, !options_.json);
      progress->Update(done);
    };
    Result<SealResult> result = SealForeignStep(fs_, step, options);
    progress.reset();
    if (!result.ok()) return result.status();
    Tell(step, *result, taken.Seconds());
    return OkStatus();
  }

  // Checks a sealed step by names and sizes; a file whose time differs is read.
  Status TellSealed(const ForeignStep& step) {
    const auto seal = ReadSeal(fs_, step.path);
    ordered_json fact = {{"checkpoint", step.path}, {"state", "sealed already"}};
    SealReport report;
    if (seal.ok())
      report = CheckSeal(fs_, step.path, *seal, SealDepth::kTouched, options_.jobs);
    else
      report.Add(seal.status(), step.path);
    if (!report.problems.empty()) {
      code_ = kExitCheckFailed;
      fact["state"] = "changed since sealed";
      fact["problems"] = cairn::ToJson(report.problems);
      for (const Problem& problem : report.problems) PrintProblem(SealProblemText(problem));
      PrintProblem(fmt::format("{}: changed since it was sealed; --again seals it as it is now", step.path));
    } else if (!report.trouble.ok()) {
      return report.trouble;
    } else if (!options_.json) {
      PrintLine("{}: sealed already, on {}", step.path, DateText(seal->sealed_unix_seconds));
    }
    list_.push_back(std::move(fact));
    return OkStatus();
  }

  void Tell(const ForeignStep& step, const SealResult& result, double seconds) {
    if (result.outcome != SealOutcome::kSealed) code_ = kExitCheckFailed;
    if (options_.json) {
      Add(FactsOf(step, result, seconds));
      return;
    }
    for (const Problem& problem : result.problems) PrintProblem(SealProblemText(problem));
    switch (result.outcome) {
      case SealOutcome::kUnfinished:
        PrintProblem(fmt::format("{}: not sealed, its writer is not done: {}", step.path, result.unfinished));
        break;
      case SealOutcome::kProblems:
        PrintProblem(fmt::format("{}: not sealed: {}; --anyway seals it with them", step.path,
                                 Counted(result.problems.size(), "problem")));
        break;
      case SealOutcome::kSealed:
        PrintLine("{}: {}, {}, {}{}", step.path, options_.dry_run ? "would be sealed" : "sealed",
                  Counted(result.seal.files.size(), "file"), HumanBytes(result.seal.bytes()),
                  options_.dry_run ? "" : fmt::format(", {}", HumanSeconds(seconds)));
        for (const std::string& line : result.seal.whole) PrintLine("  {}", line);
        for (const std::string& line : result.seal.untold) PrintLine("  not checked: {}", line);
    }
    std::fflush(stdout);
  }

  // Prints at once if a watcher's reader waits for it, else one list at the end.
  void Add(ordered_json fact) {
    if (!options_.watch) {
      list_.push_back(std::move(fact));
      return;
    }
    fmt::print("{}\n", fact.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
    std::fflush(stdout);
  }

  ordered_json FactsOf(const ForeignStep& step, const SealResult& result, double seconds) const {
    ordered_json fact = {{"checkpoint", step.path}};
    if (step.step) fact["step"] = *step.step;
    fact["state"] = result.outcome == SealOutcome::kUnfinished ? "unfinished"
                    : result.outcome == SealOutcome::kProblems ? "not sealed"
                    : options_.dry_run                         ? "would be sealed"
                                                               : "sealed";
    if (!result.unfinished.empty()) fact["why"] = result.unfinished;
    fact["problems"] = cairn::ToJson(result.problems);
    if (result.outcome != SealOutcome::kSealed) return fact;
    fact["system"] = result.seal.system;
    fact["files"] = result.seal.files.size();
    fact["bytes"] = result.seal.bytes();
    fact["whole"] = result.seal.whole;
    fact["untold"] = result.seal.untold;
    fact["seconds"] = seconds;
    return fact;
  }

  // Runs until a signal. A step that cannot be sealed is reported once, and tried again when its files
  // change.
  Result<int> Watch() {
    while (!seal_stop) {
      std::vector<ForeignStep> steps = ListRunSteps(fs_, options_.directories.front());
      std::ranges::reverse(steps);
      for (const ForeignStep& step : steps)
        if (!seal_stop && !HasSeal(fs_, step.path)) WatchStep(step);
      SleepUnlessStopped(static_cast<double>(options_.interval_seconds));
    }
    return kExitDone;
  }

  void WatchStep(const ForeignStep& step) {
    const auto files = ListStepFiles(fs_, step.path);
    if (!files.ok()) return;  // removed meanwhile, say
    if (!WhyUnfinished(fs_, step, *files, /*strict=*/true, std::time(nullptr), options_.settle_seconds)
             .empty())
      return;
    const auto tried = tried_.find(step.path);
    if (tried != tried_.end() && tried->second == *files) return;
    tried_[step.path] = *files;
    const Status status = Seal(step, OptionsFor(/*strict=*/true));
    if (!status.ok() && !seal_stop) PrintProblem(status.message());
  }

  Result<int> Newest() {
    CAIRN_ASSIGN_OR_RETURN(std::vector<ForeignStep> steps,
                           ListForeignSteps(fs_, options_.directories.front()));
    std::ranges::reverse(steps);
    for (const ForeignStep& step : steps) {
      CAIRN_ASSIGN_OR_RETURN(const std::string why, WhyNotWhole(step));
      if (!why.empty()) {
        PrintProblem("passed over: " + why);
        continue;
      }
      if (!options_.json) {
        PrintLine("{}", step.path);
        return kExitDone;
      }
      ordered_json fact = {{"checkpoint", step.path}};
      if (step.step) fact["step"] = *step.step;
      PrintJson(fact);
      return kExitDone;
    }
    PrintProblem(fmt::format("{}: no sealed step that is whole", options_.directories.front()));
    if (options_.json) PrintJson(nullptr);
    return kExitCheckFailed;
  }

  // An added file does not damage what was sealed: it is reported, and the step counts as sealed.
  Result<std::string> WhyNotWhole(const ForeignStep& step) {
    if (!HasSeal(fs_, step.path)) return step.path + ": it has no seal";
    const auto seal = ReadSeal(fs_, step.path);
    if (IsRefusal(seal.status())) return seal.status();
    if (!seal.ok()) return seal.status().message();
    if (!seal->problems.empty())
      return fmt::format("{}: sealed with --anyway, in spite of: {}", step.path, seal->problems.front());
    const SealReport report = CheckSeal(fs_, step.path, *seal,
                                        options_.hash ? SealDepth::kAll : SealDepth::kTouched, options_.jobs);
    for (const Problem& problem : report.problems) {
      if (std::ranges::find(report.added, problem.file) == report.added.end())
        return SealProblemText(problem);
      PrintProblem("note: " + SealProblemText(problem));
    }
    CAIRN_RETURN_IF_ERROR(report.trouble);
    return std::string();
  }

  const SealVerbOptions& options_;
  FileSystem& fs_;
  int code_ = kExitDone;
  ordered_json list_ = ordered_json::array();
  std::map<std::string, std::vector<StepFile>> tried_;  // of steps that a watcher could not seal
};

Result<int> RunSeal(const SealVerbOptions& options) {
  if (options.newest && options.watch) return InvalidArgument("--newest and --watch are two jobs; give one");
  if ((options.newest || options.watch) && options.directories.size() != 1)
    return InvalidArgument("--newest and --watch take one run directory");
  if (options.hash && !options.newest)
    return InvalidArgument("--hash is for --newest: a seal reads every byte by itself");
  if (!options.publish.empty() && (options.newest || options.watch || options.directories.size() != 1))
    return InvalidArgument("--publish takes one step, without --newest and --watch");
  if ((options.newest || options.watch) && (options.dry_run || options.again))
    return InvalidArgument("--dry-run and --again are for directories that are sealed now");
  return SealVerb(options).Run();
}

}  // namespace

void AddSealCommand(CLI::App& app, Verb& verb) {
  const auto options = std::make_shared<SealVerbOptions>();
  CLI::App* seal = app.add_subcommand(
      "seal", "commit a checkpoint that another program wrote: digests of every file, written last");
  seal->add_option("DIR", options->directories,
                   "steps, or runs of DeepSpeed, Megatron, torch.distributed.checkpoint, transformers")
      ->required();
  seal->add_flag("--newest", options->newest,
                 "print the newest sealed step of the run that is whole, for a job script; seal nothing");
  seal->add_flag("--hash", options->hash,
                 "with --newest: read every byte (otherwise sizes and times, and files of another time)");
  seal->add_flag("--watch", options->watch,
                 "seal each step of the run once its writer is done, until a signal");
  seal->add_option("--interval", options->interval_seconds, "with --watch: seconds from one look to the next")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str()
      ->option_text("SECONDS");
  seal->add_option("--settle", options->settle_seconds,
                   "seconds for which no file may have been written; a file that is younger is waited for")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->option_text("SECONDS");
  seal->add_option(
          "--publish", options->publish,
          "then rename the one step DIR to TO; a TO that is there changes places with it, so that TO "
          "is whole at any time")
      ->option_text("TO");
  AddSourceFlags(*seal, options->open);
  seal->add_flag("--again", options->again, "seal a sealed directory as it is now");
  seal->add_flag("--anyway", options->anyway, "seal in spite of problems; the seal lists them");
  seal->add_option("--jobs", options->jobs, "files to read at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->option_text("N");
  seal->add_flag("--dry-run", options->dry_run, "check that all files exist; read no tensor, write nothing");
  seal->add_flag("--json", options->json, "print facts as JSON; with --watch one object a line");
  seal->footer(
      "Reads every file once and writes DIR/.cairn-seal.json last; no other program looks at that file. Of "
      "a\n"
      "run each step that its tracker (latest, latest_checkpointed_iteration.txt, .metadata,\n"
      "trainer_state.json) says is done. verify, ls and archive then hold for the directory as for a step "
      "of\n"
      "Cairn. Files are given to the disk first (fsync), so that a seal that is there has its files. No\n"
      "pickle is run.\n\n"
      "A job script that resumes from nothing half-written:\n"
      "  STEP=$(cairn seal --newest runs/gpt) && ARGS=\"--load $STEP\"\n\n" +
      HelpFooter("cairn seal --watch runs/gpt",
                 "something is missing, damaged, changed or still written; --newest: no step is whole"));
  seal->callback([options, &verb] { verb = [options] { return RunSeal(*options); }; });
}

}  // namespace cairn
