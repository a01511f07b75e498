// The argument decides the check: a member of a store, another system's checkpoint with or without a seal, or
// native steps one after another. Sizes and times of a native step's files are noted before they are read: a
// change meanwhile is noticed later. The bytes of another system's checkpoint are verified if its files have
// checksums.

#include "tools/check/checkpoint_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <ranges>
#include <set>
#include <utility>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/glob.h"
#include "ckpt/base/short_list.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/deletion.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/run_health.h"
#include "ckpt/step/find_step.h"
#include "convert/formats/torch/torch.h"
#include "convert/verbs/file_sums.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/store.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/check/node_step.h"
#include "tools/check/step_check.h"
#include "tools/check/value_check.h"
#include "tools/check/verify_record.h"
#include "tools/cli/progress.h"
#include "tools/place/finished.h"
#include "tools/place/place.h"
#include "tools/seal/seal_check.h"
#include "tools/seal/step_parts.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

// What to type instead if the directory contains runs of Cairn, as a Trainer's unsealed checkpoint does.
std::string RunsInside(FileSystem& fs, const std::string& path) {
  std::vector<std::string> runs;
  for (const Place& run : RunsIn(fs, path))
    if (run.native_run()) runs.push_back(run.path);
  if (runs.empty()) return "";
  return fmt::format("; seal it first (cairn seal {}), or verify the runs in it: {}", path,
                     fmt::join(runs, " "));
}

// The steps of Cairn at a place, or all or the newest step of a run in `path`. Unlike elsewhere, a damaged
// newest step is not skipped. Errors: NotFound if there is nothing to check.
Result<std::vector<std::string>> NativeSteps(FileSystem& fs, const Place& place, bool all) {
  const std::string& path = place.native_path;
  if (place.kind == PlaceKind::kStep || place.kind == PlaceKind::kNodeStep ||
      ParseStepDirName(LastName(path)))
    return std::vector{path};
  std::vector<std::string> names;
  if (all) {
    for (const FoundStep& step : place.steps) names.push_back(step.path);
  } else {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListCurrentSteps(fs, path));
    if (!steps.empty()) names = {JoinPath(path, StepDirName(steps.back()))};
  }
  if (names.empty()) return NotFound("{}: no committed step here{}", path, RunsInside(fs, path));
  for (std::string& name : names) {  // one that is replaced just now waits aside
    CAIRN_ASSIGN_OR_RETURN(name, StepPath(fs, name));
  }
  return names;
}

std::string NamesOf(const CheckOptions& checks) {
  std::vector<std::string_view> names;
  if (checks.structure) names.emplace_back("structure");
  if (checks.hash) names.emplace_back(checks.sample ? "a sample of the bytes" : "every byte");
  if (checks.values) names.emplace_back("values");
  return fmt::format("{}", fmt::join(names, ", "));
}

// Why nobody should resume from a step although its values may be intact.
std::string WhyUnhealthyAt(FileSystem& fs, const std::string& directory) {
  const std::filesystem::path step = CanonicalPath(directory);
  const auto run = ReadRunSteps(fs, step.parent_path().string());
  for (size_t i = 0; run.ok() && i < run->steps.size(); ++i)
    if (StepDirName(run->steps[i].step) == step.filename()) return run->steps[i].unhealthy;
  return {};
}

class Checker {
 public:
  Checker(FileSystem& fs, const CheckpointChecks& asked,
          const std::function<void(const CheckpointReport&)>& checked)
      : fs_(fs),
        asked_(asked),
        checks_{.structure = asked.structure,
                .hash = asked.hash || asked.sample,
                .values = asked.values,
                .sample = asked.sample,
                .jobs = asked.jobs},
        checked_(checked) {
    if (!checks_.structure && !checks_.hash && !checks_.values) checks_.structure = checks_.hash = true;
  }

  // Notes for the next report.
  void PassOver(const std::vector<std::string>& steps) {
    for (const std::string& why : steps) notes_.push_back("passed over: " + why);
  }

  // Errors: those of CheckCheckpoints().
  Status CheckMember(const Place& named) {
    const Store store(fs_, named.path);
    CAIRN_ASSIGN_OR_RETURN(const ArchiveMember member, FindMember(store, named.member));
    if (member.record) CAIRN_RETURN_IF_ERROR(CheckOnDisk(fs_, FilesOf(store.Place(*member.record))));
    CAIRN_ASSIGN_OR_RETURN(const auto view, OpenMember({store, member.tar}));
    if (member.form != Form::kFiles) {
      CheckNative(*view, view->root());
      return OkStatus();
    }
    CAIRN_ASSIGN_OR_RETURN(const Place place, PlaceAt(*view, view->root()));
    return CheckAny(*view, place, named, false);
  }

  // A checkpoint of any system. `named`: as it is opened, a member of a store by its name. `of_run`: one of
  // several.
  Status CheckAny(FileSystem& fs, const Place& place, const Place& named, bool of_run) {
    if (place.sealed) {
      if (!asked_.values || asked_.structure || asked_.hash)
        CAIRN_RETURN_IF_ERROR(CheckSealed(fs, place.path));
      return asked_.values ? CheckForeign(named) : OkStatus();
    }
    if (of_run) notes_.push_back(place.path + " has no seal");
    if (place.native_path.empty() || AsksForFormat()) return CheckForeign(named);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> steps, NativeSteps(fs, place, asked_.all));
    for (const std::string& step : steps) {
      if (place.of_node())
        CAIRN_RETURN_IF_ERROR(CheckNode(fs, step));
      else
        CheckNative(fs, step);
    }
    return OkStatus();
  }

 private:
  void CheckNative(FileSystem& fs, const std::string& directory) {
    const Result<Manifest> manifest = ReadManifest(fs, directory);
    std::vector<CheckedFile> files;
    if (manifest.ok()) files = StatFiles(fs, directory, *manifest);
    const uint64_t bytes = manifest.ok() ? manifest->bytes() * (checks_.hash + checks_.values) : 0;
    std::optional<Progress> progress(std::in_place, "verifying", bytes, asked_.show_progress);
    StepReport step = CheckStep(fs, directory, checks_, [&](uint64_t done) { progress->Update(done); });
    progress.reset();
    CheckpointReport report{step, directory, NamesOf(checks_)};
    report.mixtures = std::move(step.mixtures);
    report.notes = std::move(step.notes);
    TakeExperts(std::move(step.experts), report.problems, report.notes);
    if (checks_.values) report.unhealthy = WhyUnhealthyAt(fs, directory);
    if (manifest.ok()) FindUnlisted(fs, *manifest, report);
    // A check that did not reach the end has not passed.
    if (!report.trouble.ok())
      std::erase_if(step.checks, [](const Check& check) { return check.problems == 0; });
    if (asked_.record && manifest.ok() && !files.empty() && !step.checks.empty())
      Record(fs, *manifest, files, step.checks, report);
    Report(std::move(report));
  }

  // The part of a step that this node has.
  Status CheckNode(FileSystem& fs, const std::string& directory) {
    if (checks_.values || checks_.sample)
      return NotSupported("{}: this node has only a part of the step, of which --hash checks all bytes",
                          directory);
    const Result<Manifest> manifest = ReadManifest(fs, directory);
    std::optional<Progress> progress(std::in_place, "verifying", manifest.ok() ? manifest->bytes() : 0,
                                     asked_.show_progress);
    VerifyReport found;
    const NodePart part =
        CheckNodePart(fs, directory, checks_.hash, found, [&](uint64_t done) { progress->Update(done); });
    progress.reset();
    CheckpointReport report{
        std::move(found), directory,
        checks_.hash ? "every byte that this node has of it" : "sizes of this node's part"};
    if (!part.elsewhere.empty())
      report.notes.push_back(fmt::format("not on this node: {}", ShortList(part.elsewhere)));
    report.notes.push_back(part.groups.empty() ? "without parity here"
                                               : "lost shards come from " + part.RebuiltFrom());
    Report(std::move(report));
    return OkStatus();
  }

  // Those that are lost by their values.
  void TakeExperts(std::vector<Problem> lost, std::vector<Problem>& problems,
                   std::vector<std::string>& notes) const {
    const bool allowed = FitsAnyGlob("experts", asked_.open.allow);
    for (Problem& one : lost)
      if (allowed)
        notes.push_back(std::move(one.what));
      else
        problems.push_back(std::move(one));
  }

  // The step is intact in spite of them, so they do not fail the check; but retention does not delete it.
  static void FindUnlisted(FileSystem& fs, const Manifest& manifest, CheckpointReport& report) {
    Result<std::vector<std::string>> found = UnlistedFiles(fs, report.checkpoint, manifest);
    if (!found.ok() || found->empty()) return;
    report.notes.push_back(
        fmt::format("{} contains files that its manifest does not list: {}; retention keeps the step until "
                    "they are moved away",
                    report.checkpoint, ShortList(*found)));
    report.unlisted = *std::move(found);
  }

  // If this user may not write into the directory, that is a note: the check was made all the same.
  void Record(FileSystem& fs, const Manifest& manifest, const std::vector<CheckedFile>& files,
              const std::vector<Check>& checks, CheckpointReport& report) {
    const auto record = RecordChecks(fs, report.checkpoint, manifest, files, checks);
    if (!record.ok()) {
      if (!std::exchange(noted_, true))
        report.notes.push_back("the result is not recorded for cairn ls: " + record.status().message());
      return;
    }
    // A check that passed today may be weaker than one that failed before.
    const bool passed = std::ranges::all_of(checks, [](const Check& check) { return check.problems == 0; });
    const Standing standing = StandingOf(*record, StatFiles(fs, report.checkpoint, manifest));
    if (passed && standing.trust == Trust::kDamaged)
      report.notes.push_back(
          fmt::format("{} still counts as damaged: {}; only an equally strong check can settle that",
                      report.checkpoint, standing.why));
  }

  // Another system's checkpoint with a seal: every byte is the one that was sealed.
  Status CheckSealed(FileSystem& fs, const std::string& directory) {
    CAIRN_RETURN_IF_ERROR(RefuseSample(directory));
    const Result<Seal> seal = ReadSeal(fs, directory);
    if (!seal.ok()) return ReportBroken(directory, JoinPath(directory, kSealName), seal.status(), "the seal");
    std::optional<Progress> progress;
    const SealReport sealed =
        CheckSeal(fs, directory, *seal, checks_.hash ? SealDepth::kAll : SealDepth::kTouched, asked_.jobs,
                  [&](uint64_t done, uint64_t bytes) {
                    if (!progress) progress.emplace("verifying", bytes, asked_.show_progress);
                    progress->Update(done);
                  });
    progress.reset();
    CheckpointReport report{sealed, directory,
                            checks_.hash
                                ? "every byte against the seal; --values reads the values, too"
                                : "names and sizes against the seal, bytes of files of another time"};
    for (const std::string& path : sealed.touched)
      report.notes.push_back(path + " has another time than when it was sealed");
    for (const std::string& problem : seal->problems)
      report.notes.push_back("sealed in spite of this: " + problem);
    if (!seal->allowed.empty())
      report.notes.push_back(fmt::format("sealed with --allow {}", fmt::join(seal->allowed, " --allow ")));
    report.notes.insert(report.notes.end(), seal->notes.begin(), seal->notes.end());
    report.unchecked = UncheckedIn(*seal, asked_.open.allow);
    if (report.unchecked.empty())
      for (const std::string& untold : seal->untold)
        report.notes.push_back("not checked when it was sealed: " + untold);
    Report(std::move(report));
    return OkStatus();
  }

  // Another system's checkpoint: its structure is good if it opens. Bytes are verified against the checksums
  // in its files, if any.
  Status CheckForeign(const Place& place) { return CheckForeign(place, asked_.open, /*beside=*/false); }
  // `beside`: it is another checkpoint in the step that was asked for.
  Status CheckForeign(const Place& place, const OpenOptions& options, bool beside) {
    const std::string path = place.name();
    CAIRN_RETURN_IF_ERROR(RefuseSample(path));
    const Result<OpenedSource> opened = OpenPlace(fs_, place, options);
    if (!opened.ok()) {
      if (ReportWithoutWeights(path)) return OkStatus();
      if (!AsksForFormat() && IsNothing(path, opened.status()))
        return NotFound("{}{}", opened.status().message(), RunsInside(fs_, path));
      return ReportBroken(path, path, opened.status(), "structure");
    }
    FileSystem& fs = opened->fs();
    CheckpointSource& source = opened->source();
    FileSums sums;
    if (checks_.hash && opened->foreign) {
      Result<FileSums> read = FindFileSums(fs, source.directory(), source.catalog().files);
      if (!read.ok()) return ReportBroken(path, path, read.status(), "structure");
      sums = *std::move(read);
      if (FitsAnyGlob("optimizer", asked_.open.allow))  // its file may be lost
        std::erase_if(sums.items, [&](const auto& item) {
          return std::ranges::find(source.catalog().files, item.first) == source.catalog().files.end();
        });
    }
    const Status unsummed =
        NotSupported("{}: its format keeps no digests to check bytes against; --values reads them all", path);
    const bool lacks_sums = asked_.hash && sums.empty();
    if (lacks_sums && !beside) return unsummed;
    // Without a choice both, as far as possible.
    const bool values = asked_.values || !asked_.hash;
    const Rest rest = RestOf(place, *opened);
    const uint64_t bytes = sums.bytes + rest.sums.bytes + (values ? source.catalog().bytes() : 0);
    std::optional<Progress> progress(std::in_place, "verifying", bytes, asked_.show_progress);
    VerifyReport found =
        CheckFileSums(fs, source.directory(), sums, [&](uint64_t done) { progress->Update(done); });
    VerifyReport of_rest = CheckFileSums(fs_, place.path, rest.sums,
                                         [&](uint64_t done) { progress->Update(sums.bytes + done); });
    found.bytes_checked += of_rest.bytes_checked;
    found.Join(std::move(of_rest));
    if (!sums.empty()) opened->foreign->SkipSums();  // they were all checked
    ExpertCensus census = TakeCensus(source.catalog().tensors, source.manifest().model);
    AllowLost(asked_.open.allow, census);
    for (std::string& lost : census.lost) found.problems.push_back({path, {}, "", std::move(lost)});
    if (place.kind == PlaceKind::kForeignStep)
      std::ranges::move(CheckStepFiles(fs_, place.path, rest.files).problems,
                        std::back_inserter(found.problems));
    if (values) {
      ValueReport of_values = CheckValues(source, census, checks_.max_memory, [&](uint64_t done) {
        progress->Update(sums.bytes + rest.sums.bytes + done);
      });
      found.bytes_checked += of_values.bytes_checked;
      std::ranges::move(of_values.notes, std::back_inserter(census.notes));
      TakeExperts(std::move(of_values.experts), found.problems, census.notes);
      found.Join(std::move(of_values));
    }
    progress.reset();
    CheckpointReport report{
        std::move(found), path,
        fmt::format("structure{}{}{}", sums.empty() ? "" : ", every byte by its checksum",
                    values ? ", values" : "", rest.sums.empty() ? "" : "; other files by their checksums")};
    report.mixtures = std::move(census.mixtures);
    report.notes = std::move(census.notes);
    if (lacks_sums) report.notes.emplace_back(unsummed.message());
    Report(std::move(report));
    OpenOptions by_itself = options;  // a format and a config.json are of the model that was opened
    by_itself.format = by_itself.config = "";
    for (const std::string& other : rest.checkpoints) {
      CAIRN_ASSIGN_OR_RETURN(const Place one, PlaceAt(fs_, other));
      CAIRN_RETURN_IF_ERROR(CheckForeign(one, by_itself, /*beside=*/true));
    }
    return OkStatus();
  }

  // What a step has beside the checkpoint that is read of it. With --allow optimizer it may be lost, so it is
  // not checked.
  struct Rest {
    std::vector<StepFile> files;           // all of the step
    std::vector<std::string> checkpoints;  // a critic beside the policy, an optimizer in a directory
    FileSums sums;                         // of the files of torch.save that are in neither
  };

  Rest RestOf(const Place& place, const OpenedSource& opened) const {
    Rest rest;
    const bool step =
        place.kind == PlaceKind::kForeignStep || place.kind == PlaceKind::kTree;  // a copy of one
    if (!step || FitsAnyGlob("optimizer", asked_.open.allow)) return rest;
    if (auto files = ListStepFiles(fs_, place.path); files.ok()) rest.files = *std::move(files);
    const std::string directory = opened.source().directory();
    if (const auto found = RecogniseStep(fs_, place.path); found.ok())
      for (const Recognised& one : *found | std::views::drop(1))
        if (one.path != directory) rest.checkpoints.push_back(one.path);
    if (!checks_.hash) return rest;
    std::set<std::string> read;
    for (const std::string& file : opened.source().catalog().files) read.insert(JoinPath(directory, file));
    std::vector<std::string> names;
    for (const StepFile& file : rest.files) {
      const std::string path = JoinPath(place.path, file.name);
      const auto is_in = [&](const std::string& other) { return path.starts_with(other + "/"); };
      if (!read.contains(path) && std::ranges::none_of(rest.checkpoints, is_in)) names.push_back(file.name);
    }
    rest.sums = FindZips(fs_, place.path, names);
    return rest;
  }

  // A file of torch.save that is not a model, but a schedule or random states: its pickle was read, and its
  // records have checksums. False if it is another file.
  bool ReportWithoutWeights(const std::string& path) {
    const std::string directory = ParentDir(path), name(LastName(path));
    if (!IsWithoutWeights(fs_, path)) return false;
    const FileSums sums = FindZips(fs_, directory, {name});
    Report({CheckFileSums(fs_, directory, sums), path,
            fmt::format("the pickle of a file without weights{}",
                        sums.empty() ? "" : ", every byte by its checksum")});
    return true;
  }

  bool AsksForFormat() const { return !asked_.open.format.empty() || !asked_.open.config.empty(); }

  // It was not opened because no format recognises the path, or anything in it.
  bool IsNothing(const std::string& path, const Status& why) const {
    return why.kind() == StatusKind::kNotFound &&
           Recognise(fs_, path).status().kind() == StatusKind::kNotFound;
  }

  Status RefuseSample(const std::string& path) const {
    if (!checks_.sample) return OkStatus();
    return NotSupported("{}: --sample is for steps of Cairn; --hash checks all bytes", path);
  }

  // A checkpoint whose `file` is so wrong that nothing else can be checked: a problem to report, not an
  // error. Any other error is returned.
  Status ReportBroken(const std::string& checkpoint, const std::string& file, const Status& why,
                      const std::string& what) {
    const bool broken = why.kind() == StatusKind::kCorrupt ||
                        (why.kind() == StatusKind::kNotFound && fs_.Stat(checkpoint).ok());
    if (!broken) return why;
    Report({{.problems = {{file, 0, "", why.message()}}}, checkpoint, what});
    return OkStatus();
  }

  void Report(CheckpointReport report) {
    report.notes.insert(report.notes.begin(), notes_.begin(), notes_.end());
    notes_.clear();
    checked_(report);
  }

  FileSystem& fs_;  // outside of archives
  const CheckpointChecks& asked_;
  CheckOptions checks_;
  const std::function<void(const CheckpointReport&)>& checked_;
  std::vector<std::string> notes_;  // for the next report
  bool noted_ = false;              // that nothing can be recorded
};

}  // namespace

Status CheckCheckpoints(FileSystem& fs, const std::string& argument, const CheckpointChecks& checks,
                        const std::function<void(const CheckpointReport&)>& checked) {
  Checker checker(fs, checks, checked);
  CAIRN_ASSIGN_OR_RETURN(const Place place, Locate(fs, argument));
  if (place.kind == PlaceKind::kMember) return checker.CheckMember(place);
  // A run's tracker names its newest step, but a seal is stronger.
  if (!place.foreign_run() || (!checks.all && !place.steps.back().sealed && IsCheckpoint(fs, place.path)))
    return checker.CheckAny(fs, place, place, false);
  std::vector<std::string> passed_over;
  CAIRN_ASSIGN_OR_RETURN(std::vector<FoundStep> steps, SavedSteps(fs, place.steps, passed_over));
  if (!checks.all) steps.erase(steps.begin(), steps.end() - 1);
  checker.PassOver(passed_over);
  for (const FoundStep& step : steps) {
    CAIRN_ASSIGN_OR_RETURN(const Place one, PlaceAt(fs, step.path));
    CAIRN_RETURN_IF_ERROR(checker.CheckAny(fs, one, one, checks.all));
  }
  if (!checks.all || CheckpointBesideSteps(fs, place).empty()) return OkStatus();
  return checker.CheckAny(fs, place, place, false);
}

}  // namespace cairn
