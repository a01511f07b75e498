#include <algorithm>
#include <set>

#include "tools/archive/store/leftovers.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/cli/output.h"
#include "tools/commands/archive/archive_verbs.h"
#include "tools/commands/commands.h"

namespace cairn {

void RecallFlags::AddTo(CLI::App& command) {
  command
      .add_option("--policy", policy,
                  "policy (TOML) with the [recall] commands and the [verify] budget to use")
      ->type_name("FILE");
  command.add_option("--recall", commands.recall, "command that brings files back from tape: dmget {paths}")
      ->option_text("CMD");
  command
      .add_option("--recall-stat", commands.stat,
                  "command that prints a file's place on tape: hsm_pos {path}")
      ->option_text("CMD");
}

Result<RecallCommands> RecallFlags::Commands() const {
  if (policy.empty()) return commands;
  CAIRN_ASSIGN_OR_RETURN(const Policy read, ReadPolicy(policy));
  return read.recall;
}

std::string MemberText(const ArchiveMember& member) { return fmt::format("{}@{}", member.run, member.step); }

std::string FilesText(const ArchiveRecord& record) {
  const std::string file = FileOf(record);
  return record.pieces.empty() ? file : fmt::format("{} in {} files", file, record.pieces.size());
}

std::vector<std::string> FilesOf(const Store& store, const std::vector<ArchiveMember>& members) {
  std::vector<std::string> paths;
  std::set<std::string> files;
  for (const ArchiveMember& member : members)
    if (files.insert(member.file()).second)
      std::ranges::copy(
          member.record ? FilesOf(store.Place(*member.record)) : std::vector{store.Path(member.file())},
          std::back_inserter(paths));
  return paths;
}

Result<std::vector<ArchiveMember>> ChosenMembers(const MemberName& name) {
  if (!name.selector.empty()) {
    CAIRN_ASSIGN_OR_RETURN(ArchiveMember member, FindMember(name.store, name.selector));
    return std::vector<ArchiveMember>{std::move(member)};
  }
  CAIRN_ASSIGN_OR_RETURN(std::vector<ArchiveMember> members, ListStore(name.store));
  if (members.empty()) return NotFound("{}: no archived step; is it the store?", name.store.directory());
  return members;
}

Status PrepareStoreAndTell(const Store& store) {
  return PrepareStore(store, [](const std::string& note) { PrintProblem("note: " + note); });
}

ExitCode ArchiveExitCode(const Status& status) {
  const bool damage = status.kind() == StatusKind::kCorrupt || status.kind() == StatusKind::kNotFound ||
                      status.kind() == StatusKind::kNotSupported;
  return damage ? kExitCheckFailed : kExitTrouble;
}

void AddArchiveCommand(CLI::App& app, Verb& verb) {
  CLI::App* archive =
      app.add_subcommand("archive", "store steps as tar files; prove, check and restore them");
  archive->require_subcommand(1);
  archive->footer(HelpFooter("cairn archive run runs/gpt --store /tape/me/store",
                             "a source or a stored copy is damaged, or changed meanwhile"));
  for (const auto add : {AddArchiveRun, AddArchivePlan, AddArchivePrune, AddArchiveBundle, AddArchiveSchedule,
                         AddArchiveLs, AddArchiveVerify, AddArchiveRestore, AddArchiveRecall})
    add(*archive, verb);
}

}  // namespace cairn
