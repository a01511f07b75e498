// Arguments become sources, and each source is archived by the process of the launch that takes it (team.h).
// The run continues after a source that fails. A process that ends before others exits with 0, because mpirun
// would end the others; the exit status of the last one covers all of them.

#include <cstdio>
#include <filesystem>

#include "ckpt/base/canonical_path.h"
#include "ckpt/model/layout.h"
#include "ckpt/run/step_tags.h"
#include "ckpt/step/partial_dir.h"
#include "tools/archive/policy/policy.h"
#include "tools/archive/schedule/team.h"
#include "tools/archive/store/archiver.h"
#include "tools/archive/store/claims.h"
#include "tools/archive/tar/tar_parity.h"
#include "tools/archive/tar/tar_writer.h"
#include "tools/check/removal_proof.h"
#include "tools/cli/dry_run.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/commands/archive/archive_verbs.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct ArchiveRunOptions {
  std::vector<std::string> sources;
  std::string store;
  std::string policy;
  bool weights = false;
  StoreOptions stored{.claims = {std::string(kByHand)}};
  Links links = Links::kRefuse;
  bool delete_source = false;
  bool delete_newest = false;
  bool delete_tree = false;
  bool dry_run = false;
  bool json = false;
};

std::string RecordText(const ArchiveRecord& record) { return fmt::format("{}@{}", record.name, record.step); }

// Stores one source after the other.
class Runner {
 public:
  Runner(const Store& store, const ArchiveRunOptions& options)
      : store_(store),
        options_(options),
        proofs_(store.fs(), {.newest = options.delete_newest, .tree = options.delete_tree}, !options.json,
                options.dry_run ? SealDepth::kLook : SealDepth::kAll) {}

  // `team`: null for a dry run.
  ShareResult Archive(const FoundStep& source, TeamStore* team) {
    const Result<ArchiveOutcome> outcome = ArchiveOne(source, team);
    const std::string passed_over = outcome.ok() ? outcome->passed_over : "";
    if (outcome.ok()) options_.json ? list_.push_back(ToJson(*outcome)) : Print(*outcome, source);
    // That the newest step of a run directory is kept, and one that is being written is passed over, is no
    // failure; to name that step itself is one.
    const Status failure = !outcome.ok()                                                ? outcome.status()
                           : source.of_run && (outcome->newest || !passed_over.empty()) ? OkStatus()
                           : !passed_over.empty() ? InvalidArgument("{}", passed_over)
                                                  : outcome->kept;
    ShareResult share{.stored_members = outcome.ok() && outcome->stored};
    if (failure.ok()) return share;
    PrintProblem(failure.message());
    code_ = std::max<int>(code_, ArchiveExitCode(failure));
    if (!outcome.ok()) list_.push_back({{"source", source.path}, {"error", failure.message()}});
    share.failures = {failure.message()};
    return share;
  }

  int Finish() const {
    if (options_.json) PrintJson(list_);
    return code_;
  }

 private:
  Result<ArchiveOutcome> ArchiveOne(const FoundStep& source, TeamStore* team) {
    ArchiveRequest request{source, options_.weights, options_.delete_source, options_.delete_newest};
    request.links = options_.links;
    if (team == nullptr) return DryRun(request);
    request.find_proof = [&](const std::string& path) { return proofs_.For(path); };
    request.stored = [&](const std::string& tar) {
      return team->Alone([&] { return AddClaim(store_, {tar}, std::string(kByHand)); });
    };
    uint64_t bytes = 0;
    if (source.native) {
      CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(store_.fs(), source.path));
      bytes = step->manifest().bytes();
    } else {
      CAIRN_ASSIGN_OR_RETURN(const auto files, ListTree(store_.fs(), source.path, options_.links));
      for (const TreeFile& file : files) bytes += file.info.bytes;
      NoteLinks(source, files);
    }
    Progress progress("archiving " + source.path, 2 * bytes, !options_.json);
    return cairn::Archive(store_, request, options_.stored, [&](uint64_t done) { progress.Update(done); });
  }

  // Reports links that lead out of the tree.
  void NoteLinks(const FoundStep& source, const std::vector<TreeFile>& files) const {
    const auto leaving = std::ranges::count_if(files, &TreeFile::leaves);
    if (leaving > 0)
      PrintProblem(fmt::format("note: {}: {} links lead out of the tree; {}", source.path, leaving,
                               options_.links == Links::kKeep
                                   ? "they are stored as links, without their targets"
                                   : "their targets are stored in their place"));
  }

  Result<ArchiveOutcome> DryRun(const ArchiveRequest& request) {
    CAIRN_ASSIGN_OR_RETURN(const ArchiveOutcome outcome, LookUp(store_, request));
    if (!outcome.stored || options_.json) return outcome;
    const bool goes = request.delete_source && WouldGo(request.source);
    fmt::print("would store {} as {}{}\n", RecordText(outcome.record),
               options_.weights        ? "its fp16 weights"
               : request.source.native ? store_.Path(TarName(outcome.record))
                                       : "a tree in " + options_.store,
               goes ? ", and then remove its source" : "");
    if (!request.source.native) return outcome;
    CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(store_.fs(), request.source.path));
    const uint64_t bytes = step->manifest().bytes();
    const uint64_t files = CountTarPieces(TarEntries(step->manifest()), options_.stored.max_tar_bytes);
    CAIRN_RETURN_IF_ERROR(PrintDryRun(
        *step, {{}, bytes, TarBytesAtMost(step->manifest()), bytes, files, kArchivePeakMemory}, "", false));
    return outcome;
  }

  // Decides without reading the step.
  bool WouldGo(const FoundStep& source) {
    if (!source.native) return proofs_.For(source.path).ok();
    if (!CheckUntagged(store_.fs(), CanonicalPath(source.path)).ok()) return false;
    if (options_.delete_newest) return true;
    const std::filesystem::path step = CanonicalPath(source.path);
    const auto newest = NewestHealthyStep(store_.fs(), step.parent_path().string());
    return !newest.ok() || !*newest || StepDirName((*newest)->step) != step.filename();
  }

  void Print(const ArchiveOutcome& o, const FoundStep& source) const {
    if (!o.passed_over.empty()) {
      if (source.of_run) fmt::print("passed over: {}\n", o.passed_over);
      return;
    }
    const std::string tar = store_.Path(FilesText(o.record));
    if (!o.stored)
      fmt::print("{} is stored and verified already: {}\n", RecordText(o.record), tar);
    else if (!options_.dry_run)
      fmt::print("stored {} as {}: {}, read back and verified, {}\n", RecordText(o.record), tar,
                 HumanBytes(o.record.tar_bytes), HumanSeconds(o.seconds));
    if (o.deleted) fmt::print("removed its source {}\n", source.path);
    if (o.newest && source.of_run) fmt::print("{}\n", o.kept.message());
    std::fflush(stdout);
  }

  ordered_json ToJson(const ArchiveOutcome& o) const {
    return {{"run", o.record.name},
            {"step", o.record.step},
            {"form", Name(o.record.form)},
            {"tar", o.record.manifest_digest.empty() ? "" : store_.Path(FileOf(o.record))},
            {"files", std::max<size_t>(1, o.record.pieces.size())},
            {"bytes", o.record.tar_bytes},
            {"stored", o.stored},
            {"source_deleted", o.deleted},
            {"source_kept", o.kept.message()},
            {"passed_over", o.passed_over},
            {"seconds", o.seconds},
            {"dry_run", options_.dry_run}};
  }

  const Store& store_;
  const ArchiveRunOptions& options_;
  RemovalProofs proofs_;
  int code_ = kExitDone;
  ordered_json list_ = ordered_json::array();
};

Result<int> RunArchive(const ArchiveRunOptions& options) {
  if (!options.policy.empty()) return RunByPolicy(options.policy, options.dry_run, options.json);
  if (options.sources.empty() || options.store.empty())
    return InvalidArgument("give SRC and --store DIR, or --policy FILE.toml");
  if (options.stored.parity < 0) return InvalidArgument("--parity is a share; write 3%");
  CAIRN_RETURN_IF_ERROR(ShapeFor(options.stored.parity).status().WithContext("--parity"));
  FileSystem& fs = FileSystem::Posix();
  const Store store(fs, options.store);
  std::vector<std::string> notes;
  CAIRN_ASSIGN_OR_RETURN(const std::vector<FoundStep> sources, ExpandSources(fs, options.sources, notes));
  for (const std::string& note : notes) PrintProblem("note: " + note);
  CAIRN_ASSIGN_OR_RETURN(const RankTeam team, ArchiveTeam());
  Runner runner(store, options);
  if (options.dry_run) {
    if (!team.leads()) return kExitDone;
    for (const FoundStep& source : sources) runner.Archive(source, nullptr);
    return runner.Finish();
  }
  CAIRN_RETURN_IF_ERROR(MakeOutputDir(fs, options.store));
  CAIRN_ASSIGN_OR_RETURN(TeamStore shared,
                         TeamStore::Join(store, team, [&] { return PrepareStoreAndTell(store); }));
  for (const size_t i : shared.Order(sources.size())) {
    const auto work = [&] { return runner.Archive(sources[i], &shared); };
    CAIRN_RETURN_IF_ERROR(shared.Share(CanonicalPath(sources[i].path), work).status());
  }
  CAIRN_ASSIGN_OR_RETURN(const bool last, shared.IsLast());
  int code = runner.Finish();
  if (!last) return kExitDone;  // mpirun ends all others if one fails; the last one reports every failure
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ShareResult> shares, shared.Collect());
  for (const ShareResult& share : shares)
    if (!share.failures.empty()) code = std::max<int>(code, kExitCheckFailed);
  return code;
}

}  // namespace

void AddArchiveRun(CLI::App& archive, Verb& verb) {
  const auto [run, options] =
      AddVerb(archive, verb, "run",
              "store steps that are not stored yet, and prove them by reading them back", RunArchive);
  run->add_option(
      "SRC", options->sources,
      "step directories, run directories with all their steps, other systems' checkpoints, or any "
      "directory");
  run->add_option("--store", options->store, "directory that keeps the tar files")->type_name("STORE");
  CLI::Option* policy = run->add_option("--policy", options->policy, "store what a policy (TOML) keeps");
  policy->type_name("FILE")->excludes("SRC")->excludes("--store");
  run->add_flag("--weights-only", options->weights, "store only the weights, as fp16");
  run->add_flag("--pack", options->stored.pack,
                "pack shards: compress the planes of floats with zstd, and store only the part of a master "
                "that its bf16 weight does not hold; unpack.py in the store unpacks them without cairn");
  run->add_option_function<std::string>(
         "--parity",
         [&parity = options->stored.parity](const std::string& text) {
           parity = ParsePercent(text).value_or(-1);
         },
         "write blocks beside each tar that can repair this share of damage, like 3%")
      ->option_text("PERCENT");
  AddSize(*run, "--max-tar-size", options->stored.max_tar_bytes,
          "continue a larger tar in X.tar.2, X.tar.3 and so on, each a plain tar with some of the files")
      ->excludes(policy);
  run->add_option("--links", options->links,
                  "links that lead out of a tree: refuse them (the default), keep them as links without "
                  "their targets, or follow them and store their targets")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Links>{
          {"refuse", Links::kRefuse}, {"keep", Links::kKeep}, {"follow", Links::kFollow}}))
      ->option_text("refuse|keep|follow")
      ->excludes(policy);
  run->add_flag("--delete-source", options->delete_source,
                "remove each step after its copy was read back and is whole; the newest healthy step of a "
                "run stays, of "
                "whichever system it is");
  run->add_flag("--delete-newest", options->delete_newest,
                "with --delete-source: remove the newest healthy step of a run, too");
  run->add_flag("--delete-tree", options->delete_tree,
                "with --delete-source: remove a directory that is not a known step, too");
  run->add_flag("--dry-run", options->dry_run, "print bytes, files, memory and time; write nothing");
  run->add_flag("--json", options->json, "print facts as JSON");
  run->footer(
      "Ranks of mpirun or srun and tasks of a Slurm array (--array=0-N) share the work: each takes what\n"
      "no other has taken, and the last one writes status, metrics and ledger. Meanwhile other runs are\n"
      "refused.\n\n" +
      HelpFooter("cairn archive run runs/gpt/step-00005000 --store /tape/me/store --delete-source",
                 "a source is damaged, or it changed or vanished meanwhile, and is not stored"));
}

}  // namespace cairn
