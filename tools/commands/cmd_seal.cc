// Three jobs of one verb: seal existing steps (publish.h may give one its final name), watch a run, and find
// the newest sealed step that is whole. sealer.h does them; here their results are printed.

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <ranges>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/stopwatch.h"
#include "convert/formats/systems.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/commands/commands.h"
#include "tools/place/place.h"
#include "tools/seal/publish.h"
#include "tools/seal/sealer.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct SealVerbOptions {
  std::vector<std::string> directories;
  std::string publish;  // the final name of the one directory; empty: it stays where it is
  SealOptions seal;
  bool newest = false;
  bool watch = false;
  bool hash = false;
  bool again = false;
  bool json = false;
  int64_t interval_seconds = 10;
};

// Set by SIGINT and SIGTERM: a read ends, and nothing is written after it.
std::atomic<bool> seal_stop = false;

void StopSealing(int) { seal_stop = true; }

void CatchSealSignals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, StopSealing);
}

class SealVerb {
 public:
  explicit SealVerb(const SealVerbOptions& options) : options_(options), fs_(FileSystem::Posix()) {}

  Result<int> Run() {
    if (options_.newest) return Newest();
    CatchSealSignals();
    if (options_.watch) {
      WatchRun(fs_, options_.directories.front(), OptionsFor(/*strict=*/true), options_.interval_seconds,
               [this](const FoundStep& step) {
                 const Status status = Seal(step, OptionsFor(/*strict=*/true));
                 if (!status.ok() && !seal_stop) PrintProblem(status.message());
               });
      return kExitDone;
    }
    for (const std::string& directory : options_.directories)
      CAIRN_RETURN_IF_ERROR(options_.publish.empty() ? SealAll(directory) : SealAndPublish(directory));
    if (options_.json) PrintJson(list_);
    return code_;
  }

 private:
  SealOptions OptionsFor(bool strict) const {
    SealOptions options = options_.seal;
    options.strict = strict;
    options.stop = &seal_stop;
    return options;
  }

  Status SealAll(const std::string& directory) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<FoundStep> steps, StepsToSeal(fs_, directory));
    for (const FoundStep& step : steps | std::views::reverse)
      CAIRN_RETURN_IF_ERROR(SealOne(step, /*strict=*/step.of_run));
    return OkStatus();
  }

  // The seal has the number of the final name.
  Status SealAndPublish(const std::string& directory) {
    const std::string from(WithoutSlashes(directory)), to(WithoutSlashes(options_.publish));
    CAIRN_RETURN_IF_ERROR(CheckPublish(fs_, from, to));
    CAIRN_ASSIGN_OR_RETURN(std::vector<FoundStep> steps, StepsToSeal(fs_, from));
    if (steps[0].of_run) return InvalidArgument("{}: a run; --publish takes one step", from);
    if (const auto named = ParseForeignStep(LastName(to))) steps[0].step = named->step;
    CAIRN_RETURN_IF_ERROR(SealOne(steps[0], /*strict=*/false));
    if (code_ != kExitDone || options_.seal.dry_run) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(const bool replaced, PublishDirectory(fs_, from, to));
    if (options_.json)
      list_.back()["published"] = to;
    else
      PrintLine("{}: published{}", to, replaced ? fmt::format("; {} has the files of before", from) : "");
    return OkStatus();
  }

  Status SealOne(const FoundStep& step, bool strict) {
    if (step.sealed && !options_.again) return TellSealed(step);
    const SealOptions options = OptionsFor(strict);
    WaitUntilQuiet(fs_, step, options, PrintProblem);
    return Seal(step, options);
  }

  Status Seal(const FoundStep& step, SealOptions options) {
    const Stopwatch taken;
    std::unique_ptr<Progress> progress;
    options.progress = [&](uint64_t done, uint64_t bytes) {
      if (!progress) progress = std::make_unique<Progress>("sealing " + step.path, bytes, !options_.json);
      progress->Update(done);
    };
    Result<SealResult> result = SealForeignStep(fs_, step, options);
    progress.reset();
    if (!result.ok()) return result.status();
    Report(step, *result, taken.Seconds());
    return OkStatus();
  }

  // Checks a sealed step by names and sizes; a file whose time differs is read.
  Status TellSealed(const FoundStep& step) {
    const auto seal = ReadSeal(fs_, step.path);
    ordered_json fact = {{"checkpoint", step.path}, {"state", "sealed already"}};
    SealReport report;
    if (seal.ok())
      report = CheckSeal(fs_, step.path, *seal, SealDepth::kTouched, options_.seal.jobs);
    else
      report.Add(seal.status(), step.path);
    if (!report.problems.empty()) {
      code_ = kExitCheckFailed;
      fact["state"] = "changed since sealed";
      fact["problems"] = cairn::ToJson(report.problems);
      for (const Problem& problem : report.problems) PrintProblem(ToString(problem));
      PrintProblem(fmt::format("{}: changed since it was sealed; --again seals it as it is now", step.path));
    } else if (!report.trouble.ok()) {
      return report.trouble;
    } else if (!options_.json) {
      PrintLine("{}: sealed already, on {}", step.path, DateText(seal->sealed_unix_seconds));
    }
    list_.push_back(std::move(fact));
    return OkStatus();
  }

  void Report(const FoundStep& step, const SealResult& result, double seconds) {
    if (result.outcome != SealOutcome::kSealed) code_ = kExitCheckFailed;
    if (options_.json) {
      Add(FactsOf(step, result, seconds));
      return;
    }
    for (const Problem& problem : result.problems) PrintProblem(ToString(problem));
    switch (result.outcome) {
      case SealOutcome::kUnfinished:
        PrintProblem(fmt::format("{}: not sealed, its writer is not done: {}", step.path, result.unfinished));
        break;
      case SealOutcome::kProblems:
        PrintProblem(fmt::format("{}: not sealed: {}; --anyway seals it with them", step.path,
                                 Counted(result.problems.size(), "problem")));
        break;
      case SealOutcome::kSealed:
        PrintLine("{}: {}, {}, {}{}", step.path, options_.seal.dry_run ? "would be sealed" : "sealed",
                  Counted(result.seal.files.size(), "file"), HumanBytes(result.seal.bytes()),
                  options_.seal.dry_run ? "" : fmt::format(", {}", HumanSeconds(seconds)));
        for (const std::string& line : result.seal.whole) PrintLine("  {}", line);
        for (const std::string& line : result.seal.notes) PrintLine("  note: {}", line);
        for (const std::string& line : result.seal.untold) PrintLine("  not checked: {}", line);
        if (!UncheckedIn(result.seal, {}).empty())
          PrintProblem(fmt::format(
              "note: verify of {} will end with status 2, because of what is not checked; --again "
              "--allow unchecked accepts that",
              step.path));
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

  ordered_json FactsOf(const FoundStep& step, const SealResult& result, double seconds) const {
    ordered_json fact = {{"checkpoint", step.path}};
    if (step.step) fact["step"] = *step.step;
    fact["state"] = result.outcome == SealOutcome::kUnfinished ? "unfinished"
                    : result.outcome == SealOutcome::kProblems ? "not sealed"
                    : options_.seal.dry_run                    ? "would be sealed"
                                                               : "sealed";
    if (!result.unfinished.empty()) fact["why"] = result.unfinished;
    fact["problems"] = cairn::ToJson(result.problems);
    if (result.outcome != SealOutcome::kSealed) return fact;
    fact["system"] = result.seal.system;
    fact["files"] = result.seal.files.size();
    fact["bytes"] = result.seal.bytes();
    fact["whole"] = result.seal.whole;
    fact["untold"] = result.seal.untold;
    fact["notes"] = result.seal.notes;
    fact["allowed"] = result.seal.allowed;
    fact["seconds"] = seconds;
    return fact;
  }

  Result<int> Newest() {
    const SealDepth depth = options_.hash ? SealDepth::kAll : SealDepth::kTouched;
    const std::string& run = options_.directories.front();
    CAIRN_ASSIGN_OR_RETURN(const auto step,
                           NewestWholeStep(fs_, run, depth, options_.seal.jobs, PrintProblem));
    if (!step) PrintProblem(run + ": no sealed step that is whole");
    if (options_.json) {
      ordered_json fact = nullptr;
      if (step) fact = {{"checkpoint", step->path}};
      if (step && step->step) fact["step"] = *step->step;
      PrintJson(fact);
    } else if (step) {
      PrintLine("{}", step->path);
    }
    return step ? kExitDone : kExitCheckFailed;
  }

  const SealVerbOptions& options_;
  FileSystem& fs_;
  int code_ = kExitDone;
  ordered_json list_ = ordered_json::array();
};

Result<int> RunSeal(const SealVerbOptions& options) {
  if (options.newest && options.watch) return InvalidArgument("--newest and --watch are two jobs; give one");
  if ((options.newest || options.watch) && options.directories.size() != 1)
    return InvalidArgument("--newest and --watch take one run directory");
  if (options.hash && !options.newest)
    return InvalidArgument("--hash is for --newest: a seal reads every byte by itself");
  if (!options.publish.empty() && (options.newest || options.watch || options.directories.size() != 1))
    return InvalidArgument("--publish takes one step, without --newest and --watch");
  if ((options.newest || options.watch) && (options.seal.dry_run || options.again))
    return InvalidArgument("--dry-run and --again are for directories that are sealed now");
  return SealVerb(options).Run();
}

}  // namespace

void AddSealCommand(CLI::App& app, Verb& verb) {
  const auto [seal, options] =
      AddVerb(app, verb, "seal",
              "commit a checkpoint that another program wrote: digests of every file, written last", RunSeal);
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
  seal->add_option("--settle", options->seal.quiet_seconds,
                   "seconds for which no file may have been written; a file that is younger is waited for")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->option_text("SECONDS");
  seal->add_option(
          "--publish", options->publish,
          "then rename the one step DIR to TO; a TO that is there changes places with it, so that TO "
          "is whole at any time")
      ->option_text("TO");
  AddSourceFlags(*seal, options->seal.open);
  seal->add_flag("--again", options->again, "seal a sealed directory as it is now");
  seal->add_flag("--anyway", options->seal.anyway, "seal in spite of problems; the seal lists them");
  seal->add_option("--jobs", options->seal.jobs, "files to read at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->option_text("N");
  seal->add_flag("--dry-run", options->seal.dry_run,
                 "check that all files exist; read no tensor, write nothing");
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
}

}  // namespace cairn
