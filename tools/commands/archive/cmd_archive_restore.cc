// The files that are needed come back from tape before they are read: a read of a file on tape may wait for
// ever.

#include "ckpt/model/layout.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/restore_part.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/cli/dry_run.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/stop_signals.h"
#include "tools/commands/archive/archive_verbs.h"
#include "tools/place/place.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

struct ArchiveRestoreOptions {
  std::string store;  // STORE:RUN@STEP
  std::string destination;
  bool weights = false;
  bool no_same_owner = false;
  std::vector<std::string> tensors;  // globs
  RecallFlags recall;
  bool dry_run = false;
};

Result<OpenedSource> OpenMemberStep(const MemberName& name, const ArchiveMember& member) {
  return OpenAnyCkpt(name.store.fs(), name.store.directory() + ":" + member.tar,
                     {.format = "native", .note = PrintProblem});
}

Result<int> PrintRestoreCost(const MemberName& name, const ArchiveMember& member,
                             const ArchiveRestoreOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckOnDisk(name.store.fs(), FilesOf(name.store, {member})));
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenMemberStep(name, member));
  const Manifest& manifest = opened.source().manifest();
  const uint64_t bytes = manifest.bytes(), files = manifest.files.size() + 1;
  fmt::print("would restore {} as {}\n", MemberText(member), options.destination);
  CAIRN_RETURN_IF_ERROR(
      PrintDryRun(opened.source(), {{}, bytes, bytes, bytes, files, kArchivePeakMemory}, "", false));
  return kExitDone;
}

// Brings back the files that the restore reads. For tensors of a step in pieces those are the pieces with the
// manifest and the index, and then those with the tensors.
Status RecallNeeded(const MemberName& name, const ArchiveMember& member,
                    const ArchiveRestoreOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const RecallCommands commands, options.recall.Commands());
  if (options.tensors.empty() || !member.record || member.record->pieces.empty())
    return Recall(name.store.fs(), FilesOf(name.store, {member}), commands).status();
  const ArchiveRecord& record = *member.record;
  const TarPlace place = name.store.Place(record);
  const std::vector<std::string> first{std::string(kManifestName), std::string(kIndexName)};
  CAIRN_RETURN_IF_ERROR(Recall(name.store.fs(), FilesWith(place, record, first), commands).status());
  CAIRN_ASSIGN_OR_RETURN(const auto view, OpenMember({name.store, member.tar}));
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(*view, view->root()));
  return Recall(name.store.fs(), FilesWith(place, record, FilesOfTensors(step->catalog(), options.tensors)),
                commands)
      .status();
}

// Restores weights or single tensors.
Status RestorePart(FileSystem& fs, const MemberName& name, const ArchiveMember& member,
                   const ArchiveRestoreOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedSource opened, OpenMemberStep(name, member));
  if (options.weights) return RestoreWeights(fs, opened.fs(), *opened.step.reader, options.destination);
  Progress progress("restoring tensors", opened.step.reader->catalog().bytes());
  CAIRN_ASSIGN_OR_RETURN(const size_t count,
                         RestoreTensors(fs, *opened.step.reader, options.tensors, options.destination,
                                        [&](uint64_t done) { progress.Update(done); }));
  fmt::print("{}, {} read from the step's files\n", Counted(count, "tensor"),
             HumanBytes(opened.step.reader->bytes_read()));
  return OkStatus();
}

Result<int> RunRestore(const ArchiveRestoreOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  const auto [store, selector] = SplitMemberName(fs, options.store);
  const MemberName name{{fs, store}, selector};
  CAIRN_ASSIGN_OR_RETURN(const ArchiveMember member, FindMember(name.store, name.selector));
  if (options.weights && !options.tensors.empty())
    return InvalidArgument("give --weights-only or --tensors, not both");
  if (options.dry_run) return PrintRestoreCost(name, member, options);
  CAIRN_RETURN_IF_ERROR(RecallNeeded(name, member, options));
  RemoveOutputsAtSignals();
  const bool part = (options.weights && member.form == Form::kFull) || !options.tensors.empty();
  const Status status = [&] {
    if (part) return RestorePart(fs, name, member, options);
    Progress progress("restoring " + MemberText(member), 2 * member.bytes);
    return RestoreTar(
        {name.store, member.tar}, options.destination, [&](uint64_t done) { progress.Update(done); },
        !options.no_same_owner && ::geteuid() == 0);
  }();
  if (!status.ok()) {
    PrintProblem(status.message());
    return ArchiveExitCode(status);
  }
  if (part)
    fmt::print("restored a part of {} as {}, verified\n", MemberText(member), options.destination);
  else
    fmt::print("restored {}{} as {}: {}, verified\n", MemberText(member),
               member.form == Form::kWeights ? " (its fp16 weights; the store has no more of it)" : "",
               options.destination, HumanBytes(member.bytes));
  return kExitDone;
}

}  // namespace

void AddArchiveRestore(CLI::App& archive, Verb& verb) {
  const auto [restore, options] =
      AddVerb(archive, verb, "restore", "restore a step, its weights, or single tensors", RunRestore);
  restore->add_option("STORE", options->store, "STORE:RUN@STEP, or STORE for its newest step")->required();
  restore->add_option("DST", options->destination, "the step directory to create")->required();
  restore->add_flag("--weights-only", options->weights, "restore only the weights of a full step, as a step");
  restore
      ->add_option("--tensors", options->tensors,
                   "restore only the tensors that match, as one safetensors file DST; \"NAME\" or "
                   "\"NAME/master\"; repeatable")
      ->allow_extra_args(false)
      ->option_text("GLOB");
  restore->add_flag("--no-same-owner", options->no_same_owner,
                    "do not restore the owners of a tree's files; without it root does");
  options->recall.AddTo(*restore);
  restore->add_flag("--dry-run", options->dry_run, "print bytes, files, memory and time; write nothing");
  restore->footer(
      "Restored files have the times of the original. If your site deletes files by the time of their last\n"
      "write, touch them.\n\n" +
      HelpFooter("cairn archive restore /tape/me/store:gpt@5000 runs/gpt/step-00005000",
                 "the stored copy is damaged; nothing is restored"));
}

}  // namespace cairn
