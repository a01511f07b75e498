#include "tools/cmd_archive_run.h"

#include <chrono>
#include <cstdio>
#include <memory>

#include "tools/archive/delete.h"
#include "tools/archive/source.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/writer_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct ArchiveRunOptions {
  std::vector<std::string> sources;
  std::string store;
  bool delete_source = false;
  bool dry_run = false;
  bool json = false;
};

std::string MemberText(const ArchiveRecord& record) { return fmt::format("{}@{}", record.name, record.step); }

// What became of one step.
struct Outcome {
  ArchiveRecord record;
  bool stored = false;  // false: it was there already
  bool deleted = false;
  double seconds = 0;
};

// Stores one step after the other.
class Runner {
 public:
  Runner(FileSystem& fs, const ArchiveRunOptions& options) : fs_(fs), options_(options) {}

  void Archive(const std::string& step_dir) {
    const Result<Outcome> outcome = Try(step_dir);
    if (outcome.ok()) {
      options_.json ? list_.push_back(ToJson(*outcome)) : Print(*outcome);
      return;
    }
    PrintProblem(outcome.status().message());
    code_ = std::max<int>(code_, ArchiveExitCode(outcome.status()));
    list_.push_back({{"source", step_dir}, {"error", outcome.status().message()}});
  }

  int Finish() const {
    if (options_.json) PrintJson(list_);
    return code_;
  }

 private:
  Result<Outcome> Try(const std::string& step_dir) {
    const auto start = std::chrono::steady_clock::now();
    CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(fs_, step_dir));
    Outcome outcome{.record = DescribeSource(*step)};
    CAIRN_ASSIGN_OR_RETURN(const auto stored, FindStored(fs_, options_.store, outcome.record));
    outcome.stored = !stored;
    if (stored) outcome.record = *stored;
    if (options_.dry_run) {
      if (!stored && !options_.json) CAIRN_RETURN_IF_ERROR(PrintCost(*step, outcome.record));
      return outcome;
    }
    if (!stored || options_.delete_source) {
      CAIRN_ASSIGN_OR_RETURN(const ProvenCopy copy, Prove(*step, stored));
      outcome.record = copy.record();
      if (options_.delete_source) CAIRN_RETURN_IF_ERROR(DeleteSource(fs_, step_dir, options_.store, copy));
      outcome.deleted = options_.delete_source;
    }
    outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return outcome;
  }

  // What was proven long ago is proven anew: its source is about to go.
  Result<ProvenCopy> Prove(const StepReader& step, const std::optional<ArchiveRecord>& stored) {
    Progress progress("archiving step " + std::to_string(step.manifest().step), 2 * step.manifest().bytes(),
                      !options_.json);
    const ByteProgress tell = [&](uint64_t done) { progress.Update(done); };
    return stored ? ProveMember(fs_, options_.store, *stored, tell)
                  : StoreStep(fs_, step, options_.store, tell);
  }

  Status PrintCost(StepReader& step, const ArchiveRecord& record) const {
    const uint64_t bytes = step.manifest().bytes();
    fmt::print("would store {} as {}{}\n", MemberText(record), JoinPath(options_.store, TarName(record)),
               options_.delete_source ? ", and then remove its source" : "");
    return PrintDryRun(step, {bytes, TarBytesAtMost(step.manifest()), bytes, 1, kArchivePeakMemory}, false);
  }

  void Print(const Outcome& o) const {
    const std::string tar = JoinPath(options_.store, TarName(o.record));
    if (!o.stored)
      fmt::print("{} is stored and verified already: {}\n", MemberText(o.record), tar);
    else if (!options_.dry_run)
      fmt::print("stored {} as {}: {}, read back and verified, {}\n", MemberText(o.record), tar,
                 HumanBytes(static_cast<double>(o.record.tar_bytes)), HumanSeconds(o.seconds));
    if (o.deleted) fmt::print("removed its source {}\n", o.record.source);
    std::fflush(stdout);
  }

  ordered_json ToJson(const Outcome& o) const {
    return {{"run", o.record.name},
            {"step", o.record.step},
            {"tar", JoinPath(options_.store, TarName(o.record))},
            {"bytes", o.record.tar_bytes},
            {"stored", o.stored},
            {"source_deleted", o.deleted},
            {"seconds", o.seconds},
            {"dry_run", options_.dry_run}};
  }

  FileSystem& fs_;
  const ArchiveRunOptions& options_;
  int code_ = kExitDone;
  ordered_json list_ = ordered_json::array();
};

Result<int> RunArchive(const ArchiveRunOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> sources, ExpandSources(fs, options.sources));
  std::optional<RunLock> lock;
  if (!options.dry_run) {
    CAIRN_RETURN_IF_ERROR(MakeDirs(fs, options.store));
    CAIRN_ASSIGN_OR_RETURN(RunLock taken, LockStore(options.store));
    lock.emplace(std::move(taken));
    CAIRN_RETURN_IF_ERROR(WriteStoreReadme(fs, options.store));
  }
  Runner runner(fs, options);
  for (const std::string& source : sources) runner.Archive(source);
  return runner.Finish();
}

}  // namespace

ExitCode ArchiveExitCode(const Status& status) {
  const bool damage = status.kind() == StatusKind::kCorrupt || status.kind() == StatusKind::kNotFound ||
                      status.kind() == StatusKind::kNotSupported;
  return damage ? kExitCheckFailed : kExitTrouble;
}

void AddArchiveRunCommand(CLI::App& archive, Verb& verb) {
  const auto options = std::make_shared<ArchiveRunOptions>();
  CLI::App* run =
      archive.add_subcommand("run", "store steps that are not stored yet, and read them back as proof");
  run->add_option("SRC", options->sources, "step directories, or run directories with all their steps")
      ->required();
  run->add_option("--store", options->store, "directory that keeps the tar files")->required();
  run->add_flag("--delete-source", options->delete_source,
                "remove each step, once its copy was read back and is whole");
  run->add_flag("--dry-run", options->dry_run, "say bytes, files, memory and time; write nothing");
  run->add_flag("--json", options->json, "print facts as JSON");
  run->footer(HelpFooter("cairn archive run runs/gpt/step-00005000 --store /tape/me/store --delete-source",
                         "a source is damaged, or changed or vanished meanwhile; it is not stored"));
  run->callback([options, &verb] { verb = [options] { return RunArchive(*options); }; });
}

}  // namespace cairn
