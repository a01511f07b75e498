// CKPT decides the check: a member of a store, another system's checkpoint with or without a seal, or native
// steps one after another. A problem is printed and sets the exit status; it does not end the verb. Sizes and
// times of a native step's files are noted before they are read: a change meanwhile is noticed later. The
// bytes of another system's checkpoint are verified if its files have checksums.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "ckpt/base/canonical_path.h"
#include "ckpt/base/short_list.h"
#include "ckpt/model/layout.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/deletion.h"
#include "ckpt/run/run_health.h"
#include "convert/formats/megatron/megatron_lm.h"
#include "convert/verbs/file_sums.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/source.h"
#include "tools/archive/store/store.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/check/step_check.h"
#include "tools/check/value_check.h"
#include "tools/check/verify_record.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/commands/commands.h"
#include "tools/commands/verify_loss.h"
#include "tools/commands/verify_targets.h"
#include "tools/seal/seal_check.h"
#include "tools/source/open_ckpt.h"
#include "tools/source/source_flags.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct VerifyOptions {
  std::string checkpoint;
  OpenOptions open;
  bool structure = false;
  bool hash = false;
  bool values = false;
  std::string sample;
  bool all = false;
  int jobs = 2;
  bool record = true;
  bool json = false;
  LossOptions loss;  // of --loss, which is a check of its own

  Result<CheckOptions> Checks() const {
    CheckOptions checks{.structure = structure,
                        .hash = hash || !sample.empty(),
                        .values = values,
                        .sample = {},
                        .jobs = jobs};
    if (!structure && !checks.hash && !values) checks.structure = checks.hash = true;
    if (!sample.empty()) {
      CAIRN_ASSIGN_OR_RETURN(checks.sample, ParseSampleSize(sample));
    }
    return checks;
  }
};

class Verifier {
 public:
  Verifier(const VerifyOptions& options, CheckOptions checks)
      : options_(options), checks_(std::move(checks)) {}

  // A checkpoint of any system, outside of archives. Errors: there is nothing to check.
  Status CheckAny(FileSystem& fs, const std::string& path) {
    if (HasSeal(fs, path)) {
      if (!options_.values || options_.structure || options_.hash)
        CAIRN_RETURN_IF_ERROR(CheckSealed(fs, path));
      return options_.values ? CheckForeign(path) : OkStatus();
    }
    if (IsForeign(path) || !options_.open.format.empty() || !options_.open.config.empty())
      return CheckForeign(path);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> steps,
                           StepsToCheck(fs, IterationSavedByCairn(fs, path), options_.all));
    for (const std::string& step : steps) Check(fs, step);
    return OkStatus();
  }

  void Check(FileSystem& fs, const std::string& directory) {
    const Result<Manifest> manifest = ReadManifest(fs, directory);
    // Noted before the files are read, so that a change meanwhile is noticed later.
    std::vector<CheckedFile> files;
    if (manifest.ok()) files = LookAtFiles(directory, *manifest);
    StepReport report;
    {
      Progress progress("verifying", BytesOf(fs, directory), !options_.json);
      report = CheckStep(fs, directory, checks_, [&](uint64_t done) { progress.Update(done); });
    }
    const std::vector<std::string> unlisted =
        manifest.ok() ? NoteUnlisted(fs, directory, *manifest) : std::vector<std::string>();
    Tell(directory, report, What(), checks_.values ? WhyUnhealthyAt(fs, directory) : "", unlisted);
    // A check that did not reach the end has not passed.
    if (!report.trouble.ok())
      std::erase_if(report.checks, [](const cairn::Check& check) { return check.problems == 0; });
    if (options_.record && manifest.ok() && !files.empty() && !report.checks.empty())
      Record(fs, directory, *manifest, files, report.checks);
  }

  // Another system's checkpoint with a seal: every byte is the one that was sealed.
  Status CheckSealed(FileSystem& fs, const std::string& directory) {
    if (checks_.sample)
      return NotSupported("{}: --sample is for steps of Cairn; --hash checks all bytes", directory);
    const Result<Seal> seal = ReadSeal(fs, directory);
    if (!seal.ok() && seal.status().kind() != StatusKind::kCorrupt) return seal.status();
    if (!seal.ok()) {
      TellBroken(directory, JoinPath(directory, kSealName), seal.status(), "the seal");
      return OkStatus();
    }
    const SealDepth depth = checks_.hash ? SealDepth::kAll : SealDepth::kTouched;
    std::optional<Progress> progress;
    const SealReport report =
        CheckSeal(fs, directory, *seal, depth, options_.jobs, [&](uint64_t done, uint64_t bytes) {
          if (!progress) progress.emplace("verifying", bytes, !options_.json);
          progress->Update(done);
        });
    progress.reset();
    for (const std::string& path : report.touched)
      PrintProblem(fmt::format("note: {} has another time than when it was sealed", path));
    for (const std::string& problem : seal->problems)
      PrintProblem(fmt::format("note: sealed in spite of this: {}", problem));
    Tell(directory, report,
         checks_.hash ? "every byte against the seal"
                      : "names and sizes against the seal, bytes of files of another time");
    return OkStatus();
  }

  // Another system's checkpoint: its structure is good if it opens. Bytes are verified against the checksums
  // in its files, if any.
  Status CheckForeign(const std::string& path) {
    if (checks_.sample)
      return NotSupported("{}: --sample is for steps of Cairn; --hash checks all bytes", path);
    const Result<OpenedSource> found = OpenAnyCkpt(path, options_.open);
    // Missing or contradictory files are problems to report, not errors of this verb.
    const StatusKind kind = found.status().kind();
    if (kind == StatusKind::kCorrupt ||
        (kind == StatusKind::kNotFound && FileSystem::Posix().Stat(path).ok())) {
      TellBroken(path, path, found.status(), "structure");
      return OkStatus();
    }
    if (!found.ok()) return found.status();
    const OpenedSource& opened = *found;
    const CheckpointSource& source = opened.source();
    FileSums sums;
    if (checks_.hash && opened.foreign) {
      Result<FileSums> told = FindFileSums(opened.fs(), source.directory(), source.catalog().files);
      if (told.status().kind() == StatusKind::kCorrupt) {
        TellBroken(path, path, told.status(), "structure");
        return OkStatus();
      }
      if (!told.ok()) return told.status();
      sums = *std::move(told);
    }
    if (options_.hash && sums.empty())
      return NotSupported("{}: its format keeps no digests to check bytes against; --values reads them all",
                          path);
    // Without a choice both, as far as possible.
    const bool values = options_.values || !options_.hash;
    Progress progress("verifying", sums.bytes + (values ? source.catalog().bytes() : 0), !options_.json);
    VerifyReport report =
        CheckFileSums(opened.fs(), source.directory(), sums, [&](uint64_t done) { progress.Update(done); });
    if (!sums.empty()) opened.foreign->SkipSums();  // they were all checked
    if (values) {
      VerifyReport of_values = CheckValues(opened.source(), checks_.max_memory,
                                           [&](uint64_t done) { progress.Update(sums.bytes + done); });
      report.bytes_checked += of_values.bytes_checked;
      report.Join(std::move(of_values));
    }
    Tell(path, report,
         fmt::format("structure{}{}", sums.empty() ? "" : ", every byte by its checksum",
                     values ? ", values" : ""));
    return OkStatus();
  }

  int Finish() const {
    if (options_.json) PrintJson(list_);
    return code_;
  }

 private:
  // Intact values may still be useless: why nobody should resume from them.
  static std::string WhyUnhealthyAt(FileSystem& fs, const std::string& directory) {
    const std::filesystem::path step = CanonicalPath(directory);
    const auto run = ReadRunSteps(fs, step.parent_path().string());
    for (size_t i = 0; run.ok() && i < run->steps.size(); ++i)
      if (StepDirName(run->steps[i].step) == step.filename()) return run->steps[i].unhealthy;
    return {};
  }

  // The step is intact in spite of them, so they do not fail the check; but retention does not delete it.
  static std::vector<std::string> NoteUnlisted(FileSystem& fs, const std::string& directory,
                                               const Manifest& manifest) {
    const Result<std::vector<std::string>> found = UnlistedFiles(fs, directory, manifest);
    if (!found.ok() || found->empty()) return {};
    PrintProblem(
        fmt::format("note: {} contains files that its manifest does not list: {}; retention keeps the step "
                    "until they are "
                    "moved away",
                    directory, ShortList(*found)));
    return *found;
  }

  void Tell(const std::string& checkpoint, const VerifyReport& report, const std::string& what,
            const std::string& unhealthy = {}, const std::vector<std::string>& unlisted = {}) {
    if (!report.problems.empty() || !unhealthy.empty())
      code_ = kExitCheckFailed;  // whatever else could not be looked at
    else if (!report.trouble.ok() && code_ == kExitDone)
      code_ = kExitTrouble;
    if (options_.json) {
      list_.push_back({{"checkpoint", checkpoint},
                       {"ok", report.good() && unhealthy.empty()},
                       {"unhealthy", unhealthy},
                       {"bytes_checked", report.bytes_checked},
                       {"unlisted", unlisted},
                       {"trouble", report.trouble.message()},
                       {"problems", ToJson(report.problems)}});
      if (!report.trouble.ok()) PrintTrouble(checkpoint, report.trouble);
      return;
    }
    for (const Problem& problem : report.problems) PrintLineIn(Tone::kBad, "{}", ToString(problem));
    if (!unhealthy.empty()) PrintLineIn(Tone::kBad, "{}: unhealthy: {}", checkpoint, unhealthy);
    if (report.good() && unhealthy.empty())
      PrintLineIn(Tone::kGood, "{}: good, {} checked ({})", checkpoint, HumanBytes(report.bytes_checked),
                  what);
    else if (!report.problems.empty())
      PrintLine("{}: {}", checkpoint, Counted(report.problems.size(), "problem"));
    if (!report.trouble.ok()) PrintTrouble(checkpoint, report.trouble);
  }

  // A checkpoint of which `file` is so wrong that nothing else can be checked.
  void TellBroken(const std::string& checkpoint, const std::string& file, const Status& why,
                  const std::string& what) {
    Tell(checkpoint, {.problems = {{file, 0, "", why.message()}}}, what);
  }

  static void PrintTrouble(const std::string& checkpoint, const Status& trouble) {
    PrintProblem(fmt::format("{}: could not be checked to the end: {}", checkpoint, trouble.message()));
  }

  // Bytes that the checks will read; 0 if the step does not open.
  uint64_t BytesOf(FileSystem& fs, const std::string& directory) const {
    const auto step = StepReader::Open(fs, directory);
    if (!step.ok()) return 0;
    return (*step)->manifest().bytes() * (static_cast<int>(checks_.hash) + static_cast<int>(checks_.values));
  }

  // If this user may not write into the directory, that is a note: the check was made all the same.
  void Record(FileSystem& fs, const std::string& directory, const Manifest& manifest,
              const std::vector<CheckedFile>& files, const std::vector<cairn::Check>& checks) {
    const auto record = RecordChecks(fs, directory, manifest, files, checks);
    if (!record.ok()) {
      if (!std::exchange(noted_, true))
        PrintProblem(
            fmt::format("note: the result is not recorded for cairn ls: {}", record.status().message()));
      return;
    }
    // A check that passed today may be weaker than one that failed before.
    const bool passed =
        std::ranges::all_of(checks, [](const cairn::Check& check) { return check.problems == 0; });
    const Standing standing = StandingOf(*record, LookAtFiles(directory, manifest));
    if (passed && standing.trust == Trust::kDamaged)
      PrintProblem(
          fmt::format("note: {} still counts as damaged: {}; only an equally strong check can settle that",
                      directory, standing.why));
  }

  std::string What() const {
    std::string what;
    const auto add = [&](std::string_view part) {
      what += fmt::format("{}{}", what.empty() ? "" : ", ", part);
    };
    if (checks_.structure) add("structure");
    if (checks_.hash) add(checks_.sample ? "a sample of the bytes" : "every byte");
    if (checks_.values) add("values");
    return what;
  }

  const VerifyOptions& options_;
  const CheckOptions checks_;
  int code_ = kExitDone;
  bool noted_ = false;  // that nothing can be recorded
  ordered_json list_ = ordered_json::array();
};

// --loss compares two checkpoints; everything else checks one.
Result<int> RunLoss(const VerifyOptions& options) {
  if (options.structure || options.hash || options.values || options.all || !options.sample.empty())
    return InvalidArgument(
        "--loss compares two checkpoints; --structure, --hash, --values, --sample and --all check one");
  if (options.loss.b.empty()) return InvalidArgument("--loss compares two checkpoints: give A and B");
  LossOptions loss = options.loss;
  loss.a = options.checkpoint;
  loss.open = options.open;
  loss.json = options.json;
  return RunVerifyLoss(loss);
}

Result<int> RunVerify(const VerifyOptions& options) {
  if (!options.loss.batches.empty()) return RunLoss(options);
  if (!options.loss.b.empty())
    return InvalidArgument("{}: verify checks one checkpoint; --loss BATCHES compares two, and so does diff",
                           options.loss.b);
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(CheckOptions checks, options.Checks());
  Verifier verifier(options, std::move(checks));
  const MemberName name = SplitMemberName(fs, options.checkpoint);
  if (!name.selector.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const ArchiveMember member, FindMember(name.store, name.selector));
    if (member.record)
      for (const std::string& path : FilesOf(name.store.Place(*member.record)))
        if (IsStub(path)) return NeedsRecall(path);
    CAIRN_ASSIGN_OR_RETURN(const auto view, OpenMember({name.store, member.tar}));
    if (member.form == Form::kFiles) {
      const bool sealed = HasSeal(*view, view->root());
      if (sealed) CAIRN_RETURN_IF_ERROR(verifier.CheckSealed(*view, view->root()));
      if (!sealed || options.values) CAIRN_RETURN_IF_ERROR(verifier.CheckForeign(options.checkpoint));
      return verifier.Finish();
    }
    verifier.Check(*view, view->root());
    return verifier.Finish();
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string checkpoint, StepPath(fs, options.checkpoint));
  for (const std::string& path : CheckpointsAt(fs, checkpoint, options.all))
    CAIRN_RETURN_IF_ERROR(verifier.CheckAny(fs, path));
  return verifier.Finish();
}

}  // namespace

void AddVerifyCommand(CLI::App& app, Verb& verb) {
  const auto options = std::make_shared<VerifyOptions>();
  CLI::App* verify = app.add_subcommand("verify", "check a checkpoint: structure, every byte, values");
  verify
      ->add_option(
          "CKPT", options->checkpoint,
          "a step, RUN@STEP, a run directory (its newest step), STORE:RUN@STEP, or a foreign checkpoint")
      ->required();
  verify->add_option("B", options->loss.b, "with --loss: the checkpoint that CKPT is compared with");
  verify
      ->add_option(
          "--loss", options->loss.batches,
          "compare the losses of CKPT and B on the same batches of one sample, in fp32: PREFIX of an "
          "indexed dataset, a .txt file of token ids (a document a line), or mock (random tokens); :N "
          "for N batches, otherwise 8. Needs the model in memory, and room in TMPDIR for the weights "
          "of a checkpoint that is not a step of Cairn")
      ->option_text("BATCHES");
  AddTolerance(*verify, "--loss-tolerance", options->loss.tolerance,
               "largest difference of a batch's losses, as a share of the loss (default 1e-6: equal weights "
               "give equal losses, and sums in another order differ by 1e-7)",
               "REL");
  verify
      ->add_option("--seq-length", options->loss.seq_length,
                   "tokens of a sample of --loss; default: the positions of the models, at most 1024")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->option_text("N");
  AddSourceFlags(*verify, options->open);
  verify->add_flag("--structure", options->structure,
                   "every element is covered once; sizes and shapes agree");
  verify->add_flag("--hash", options->hash, "every byte is the one that was saved");
  verify->add_flag("--values", options->values,
                   "no NaN or infinity; each 16-bit weight is its fp32 master, rounded to nearest even");
  verify
      ->add_option("--sample", options->sample,
                   "check only this share or size of the tensors' bytes, chosen at random: 5%, 200GB")
      ->type_name("PERCENT|SIZE");
  verify->add_flag("--all", options->all, "check every step of a run directory");
  verify->add_option("--jobs", options->jobs, "files to read at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str()
      ->option_text("N");
  verify->add_flag("--record,!--no-record", options->record,
                   "keep the result in RUN/verified, for ls and archive (the default)");
  verify->add_flag("--json", options->json, "print the list of problems as JSON");
  verify->footer(
      "Default: --structure --hash; for a foreign checkpoint all three, as far as its files have checksums\n"
      "(SHA256SUMS of a release, the CRC-32 of torch.save's records). Of a sealed directory (cairn seal) "
      "every\n"
      "byte against the seal. Each problem names its file, byte offset and tensor. A file in a step that "
      "its\n"
      "manifest does not list is a note.\n\n" +
      HelpFooter("cairn verify runs/gpt --values", "something is wrong with the checkpoint"));
  verify->callback([options, &verb] { verb = [options] { return RunVerify(*options); }; });
}

}  // namespace cairn
