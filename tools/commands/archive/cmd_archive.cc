// ls, verify, recall and restore; the other subcommands have files of their own. All find their members
// without reading tars. verify and restore ask for what they need from tape before they read it: a read of
// a file on tape may wait for ever. verify reports what is still on tape without reading it, and enters
// what it saw into the ledger, so that the next budget starts with the members that were looked at longest
// ago.

#include "tools/commands/archive/cmd_archive.h"

#include <memory>
#include <set>

#include "ckpt/model/layout.h"
#include "tools/archive/bundle/scrub.h"
#include "tools/archive/policy/policy.h"
#include "tools/archive/store/claims.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/member_title.h"
#include "tools/archive/store/restore.h"
#include "tools/archive/store/restore_part.h"
#include "tools/archive/store/store_member.h"
#include "tools/archive/tar/recall.h"
#include "tools/archive/tar/tar_pieces.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/cli/stop_signals.h"
#include "tools/cli/text_table.h"
#include "tools/cli/writer_flags.h"
#include "tools/commands/archive/cmd_archive_bundle.h"
#include "tools/commands/archive/cmd_archive_policy.h"
#include "tools/commands/archive/cmd_archive_run.h"
#include "tools/commands/archive/cmd_archive_schedule.h"
#include "tools/source/open_ckpt.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct ArchiveOptions {
  std::string store;                   // or STORE:RUN@STEP
  std::string destination;             // of restore
  bool rebuild = false;                // of ls
  std::string sample;                  // of verify
  std::string per_night;               // of verify
  bool repair = false;                 // of verify
  bool weights = false;                // of restore
  bool no_same_owner = false;          // of restore
  std::vector<std::string> tensors;    // of restore: globs
  std::vector<std::string> selectors;  // of recall
  std::string policy;                  // where the recall commands are
  RecallCommands recall;
  bool dry_run = false;
  bool json = false;
};

std::string MemberText(const ArchiveMember& member) { return fmt::format("{}@{}", member.run, member.step); }

ordered_json ToJson(const LedgerMember& entry, const std::string& state, bool on_tape) {
  const ArchiveMember& m = entry.member;
  ordered_json json = {{"run", m.run},   {"step", m.step}, {"form", Name(m.form)},
                       {"state", state}, {"tar", m.tar},   {"bytes", m.bytes}};
  if (m.file() != m.tar) json["bundle"] = m.file();
  if (on_tape) json["on_tape"] = true;
  for (size_t i = 0; m.record && i < m.record->pieces.size(); ++i)
    json["pieces"].push_back({{"name", TarPieceName(m.tar, i + 1)}, {"bytes", m.record->pieces[i]}});
  if (!m.trouble.empty()) json["trouble"] = m.trouble;
  if (!entry.scrub.trouble.empty()) json["trouble"] = entry.scrub.trouble;
  if (m.record) {
    json["tokens"] = m.record->tokens;
    json["run_id"] = m.record->run;
    json["source"] = m.record->source;
    json["claims"] = ClaimsOf(*m.record);
    json["healthy"] = m.record->healthy;
    json["verified_unix_seconds"] = std::max(m.record->verified_unix_seconds, entry.scrub.unix_seconds);
  }
  return json;
}

// Each once, however many members lie in it.
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

// All of it, or one of its files.
bool IsOnTape(const Store& store, const ArchiveMember& member) {
  return std::ranges::any_of(FilesOf(store, {member}), IsStub);
}

// Makes the sidecars of tars that lost theirs, by reading those.
Result<int> RebuildSidecars(const Store& store) {
  CAIRN_ASSIGN_OR_RETURN(const FileLock lock, LockStore(store));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore(store));
  int code = kExitDone;
  std::set<std::string> done;
  for (const ArchiveMember& member : members) {
    if (member.state == MemberState::kVerified || member.bytes == 0) continue;
    const bool unproven = member.record && member.record->verified_unix_seconds == 0;
    if (member.record && !unproven) continue;  // readable: its tar is what is wrong
    if (!done.insert(member.file()).second) continue;
    if (const std::string file = store.Path(member.file()); IsStub(file)) {
      PrintProblem(NeedsRecall(file).message());
      code = kExitCheckFailed;
      continue;
    }
    const std::string sidecar = store.Sidecar(member.file());
    if (store.fs().Stat(sidecar).ok() && !unproven)
      CAIRN_RETURN_IF_ERROR(store.fs().Rename(sidecar, sidecar + ".damaged"));
    std::vector<std::string> problems;
    if (ParseBundleName(member.file())) {
      const auto rebuilt = RebuildBundle(store, member.file());
      problems = rebuilt.ok() ? *rebuilt : std::vector{rebuilt.status().message()};
    } else if (const auto proof = RebuildRecord({store, member.tar}, {}); !proof.ok()) {
      problems = {proof.status().message()};
    }
    for (const std::string& problem : problems) PrintProblem(problem);
    if (!problems.empty()) code = kExitCheckFailed;
  }
  return code;
}

Result<int> RunArchiveLs(const ArchiveOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  const Store store(fs, options.store);
  int code = kExitDone;
  if (options.rebuild) {
    CAIRN_ASSIGN_OR_RETURN(code, RebuildSidecars(store));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::vector<LedgerMember> members, ListByLedger(store, options.rebuild));
  std::vector<SeenSource> waiting;
  if (Result<Ledger> ledger = Ledger::Open(store); ledger.ok()) {
    CAIRN_ASSIGN_OR_RETURN(waiting, ledger->Sources());
    std::erase_if(waiting, [&](const SeenSource& source) { return !fs.Stat(source.path).ok(); });
  }
  const bool busy = IsBusy(store);
  ordered_json list = ordered_json::array();
  MemberTitles titles;
  for (const LedgerMember& entry : members)
    if (const ArchiveMember& m = entry.member; m.record)
      titles.Add(m.run, m.record->run, m.step, m.form == Form::kFiles);
  std::vector<std::string> columns{"member", "form", "state", "tokens", "size", "verified", "tar"};
  if (titles.ambiguous()) columns.emplace_back("source");
  TextTable table(columns);
  for (const LedgerMember& entry : members) {
    const ArchiveMember& m = entry.member;
    const std::string state = StateText(fs, entry);
    const std::string trouble = m.trouble.empty() ? entry.scrub.trouble : m.trouble;
    const bool on_tape = IsOnTape(store, m);
    list.push_back(ToJson(entry, state, on_tape));
    std::vector<std::string> row{
        titles.Of(m),
        std::string(Name(m.form)),
        on_tape ? state + ", on tape" : state,
        m.record ? std::to_string(m.record->tokens) : "-",
        HumanBytes(m.bytes),
        m.record ? DateText(std::max(m.record->verified_unix_seconds, entry.scrub.unix_seconds)) : "-",
        fmt::format("{}{}{}", m.record ? FilesText(*m.record) : m.file(), trouble.empty() ? "" : ": ",
                    trouble)};
    if (titles.ambiguous()) row.push_back(m.record ? m.record->source : "-");
    table.Add(row);
  }
  for (const SeenSource& source : waiting) {
    const std::string state = busy ? "archiving" : source.state;
    std::vector<std::string> row{fmt::format("{}@{}", source.run, source.step),
                                 "-",
                                 state,
                                 "-",
                                 HumanBytes(source.bytes),
                                 "-",
                                 source.path};
    if (titles.ambiguous()) row.push_back(source.path);
    table.Add(row);
    list.push_back({{"run", source.run},
                    {"step", source.step},
                    {"state", state},
                    {"source", source.path},
                    {"bytes", source.bytes}});
  }
  options.json ? PrintJson(list) : table.Print();
  return code;
}

// Errors: NotFound if there is none.
Result<std::vector<ArchiveMember>> ChosenMembers(const MemberName& name) {
  if (!name.selector.empty()) {
    CAIRN_ASSIGN_OR_RETURN(ArchiveMember member, FindMember(name.store, name.selector));
    return std::vector<ArchiveMember>{std::move(member)};
  }
  CAIRN_ASSIGN_OR_RETURN(std::vector<ArchiveMember> members, ListStore(name.store));
  if (members.empty()) return NotFound("{}: no archived step here; is it the store?", name.store.directory());
  return members;
}

Result<RecallCommands> RecallOf(const ArchiveOptions& options) {
  if (options.policy.empty()) return options.recall;
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(options.policy));
  return RecallCommands{policy.recall_stat, policy.recall};
}

// Brings the members' tars back from tape, all at once.
Status RecallMembers(const ArchiveOptions& options, const Store& store,
                     const std::vector<ArchiveMember>& members) {
  CAIRN_ASSIGN_OR_RETURN(const RecallCommands commands, RecallOf(options));
  return Recall(FilesOf(store, members), commands).status();
}

void PrintReport(const ArchiveMember& member, const VerifyReport& report) {
  for (const Problem& problem : report.problems) PrintLine("{}: {}", MemberText(member), ToString(problem));
  if (!report.trouble.ok())
    PrintProblem(
        fmt::format("{}: could not be read to the end: {}", MemberText(member), report.trouble.message()));
  if (report.good())
    PrintLine("{}: whole, {} read back{}", MemberText(member), HumanBytes(report.bytes_checked),
              member.record ? "" : "; it has no sidecar, cairn archive run of its source writes one");
}

// On a budget: those that were looked at longest ago.
Result<std::vector<ArchiveMember>> ChooseByBudget(const ArchiveOptions& options, const Store& store,
                                                  const std::vector<ArchiveMember>& members) {
  Policy policy;  // its [verify] counts where no flag says otherwise
  if (!options.policy.empty()) {
    CAIRN_ASSIGN_OR_RETURN(policy, ReadPolicy(options.policy));
  }
  const auto fraction =
      options.sample.empty() ? std::optional(policy.verify_sample) : ParsePercent(options.sample);
  const auto bytes = options.per_night.empty() ? std::optional(static_cast<double>(policy.verify_per_night))
                                               : ParseSize(options.per_night);
  if (!fraction) return InvalidArgument("--sample '{}' is not a share; write 2%", options.sample);
  if (!bytes) return InvalidArgument("--per-night '{}' is not a size; write 200GB", options.per_night);
  CAIRN_ASSIGN_OR_RETURN(std::vector<LedgerMember> all, ListByLedger(store, false));
  std::erase_if(all, [&](const LedgerMember& entry) {
    return std::ranges::find(members, entry.member.tar, &ArchiveMember::tar) == members.end();
  });
  std::vector<ArchiveMember> chosen;
  for (const LedgerMember& entry : ChooseToScrub(std::move(all), *fraction, static_cast<uint64_t>(*bytes)))
    chosen.push_back(*std::ranges::find(members, entry.member.tar, &ArchiveMember::tar));
  return chosen;
}

struct VerifyPlan {
  std::vector<ArchiveMember> members;  // to read back
  std::vector<ArchiveMember> on_tape;  // that are not looked at: nobody says how to ask for them
};

// What is on tape without a recall command does not use up the budget, night after night.
Result<VerifyPlan> PlanVerify(const ArchiveOptions& options, const MemberName& name,
                              const RecallCommands& commands) {
  VerifyPlan plan;
  CAIRN_ASSIGN_OR_RETURN(plan.members, ChosenMembers(name));
  if (commands.recall.empty()) {
    const auto taped = std::ranges::stable_partition(
        plan.members, [&](const ArchiveMember& member) { return !IsOnTape(name.store, member); });
    plan.on_tape.assign(taped.begin(), taped.end());
    plan.members.erase(taped.begin(), taped.end());
  }
  if (options.sample.empty() && options.per_night.empty() && options.policy.empty()) return plan;
  CAIRN_ASSIGN_OR_RETURN(plan.members, ChooseByBudget(options, name.store, plan.members));
  return plan;
}

// Repairs a member; the report becomes that of the repaired one.
Status RepairAndVerify(const Store& store, ArchiveMember& member, VerifyReport& report) {
  CAIRN_ASSIGN_OR_RETURN(const FileLock lock, LockStore(store));
  CAIRN_ASSIGN_OR_RETURN(const std::string how, RepairMember(store, member));
  member = DescribeMember({store, member.tar});
  report = VerifyMember(store, member);
  PrintProblem(fmt::format("note: {}: {}", MemberText(member), how));
  return OkStatus();
}

// What a recall did not bring back is not read, which might wait for ever.
VerifyReport VerifyUnlessOnTape(const Store& store, const ArchiveMember& member, bool quiet) {
  for (const std::string& path : FilesOf(store, {member}))
    if (IsStub(path))
      return {
          .problems = {{path, 0, "",
                        "still on tape after the recall command, or lost: it has fewer blocks than bytes"}}};
  Progress progress("verifying " + MemberText(member), member.bytes, !quiet);
  return VerifyMember(store, member, [&](uint64_t done) { progress.Update(done); });
}

// What was not looked at is said, and is not a failure unless it was asked for by name.
int FinishVerify(const VerifyPlan& plan, const MemberName& name, const ArchiveOptions& options,
                 ordered_json list, int code) {
  for (const ArchiveMember& m : plan.on_tape) {
    list.push_back({{"run", m.run}, {"step", m.step}, {"tar", m.tar}, {"ok", nullptr}, {"on_tape", true}});
    if (!options.json) PrintLine("{}: on tape, needs recall; not looked at", MemberText(m));
  }
  if (options.json) PrintJson(list);
  if (plan.on_tape.empty()) return code;
  const std::string how = "give --recall CMD, or --policy with [recall] commands";
  if (!name.selector.empty()) {
    PrintProblem(fmt::format("{}: on tape, needs recall; {}", options.store, how));
    return std::max<int>(code, kExitTrouble);
  }
  PrintProblem(fmt::format("note: {} member{} on tape and not looked at ({} looked at); {}",
                           plan.on_tape.size(), plan.on_tape.size() == 1 ? " is" : "s are",
                           plan.members.size(), how));
  return code;
}

Result<int> RunArchiveVerify(const ArchiveOptions& options) {
  const MemberName name = SplitMemberName(FileSystem::Posix(), options.store);
  CAIRN_ASSIGN_OR_RETURN(const RecallCommands commands, RecallOf(options));
  CAIRN_ASSIGN_OR_RETURN(VerifyPlan plan, PlanVerify(options, name, commands));
  CAIRN_RETURN_IF_ERROR(TryRecall(FilesOf(name.store, plan.members), commands).status());
  Result<Ledger> ledger = Ledger::Open(name.store);  // of a store that is read-only there is none
  if (ledger.ok()) (void)ledger->Sync();
  int code = kExitDone;
  ordered_json list = ordered_json::array();
  for (ArchiveMember& m : plan.members) {
    VerifyReport report = VerifyUnlessOnTape(name.store, m, options.json);
    if (!report.problems.empty() && options.repair)
      if (const Status mended = RepairAndVerify(name.store, m, report); !mended.ok())
        PrintProblem(mended.message());
    if (!report.problems.empty())
      code = kExitCheckFailed;
    else if (!report.good() && code == kExitDone)
      code = kExitTrouble;
    if (ledger.ok() && m.record && (report.trouble.ok() || !report.problems.empty())) {
      (void)ledger->Sync();
      (void)ledger->SetScrub(
          m.tar, {std::time(nullptr), report.problems.empty() ? "" : ToString(report.problems.front())});
    }
    list.push_back({{"run", m.run},
                    {"step", m.step},
                    {"tar", m.tar},
                    {"ok", report.good()},
                    {"trouble", report.trouble.message()},
                    {"bytes_checked", report.bytes_checked},
                    {"problems", ToJson(report.problems)}});
    if (!options.json) PrintReport(m, report);
  }
  return FinishVerify(plan, name, options, std::move(list), code);
}

Result<int> RunRecall(const ArchiveOptions& options) {
  const Store store(FileSystem::Posix(), options.store);
  std::vector<ArchiveMember> members;
  for (const std::string& selector : options.selectors) {
    CAIRN_ASSIGN_OR_RETURN(const auto chosen, ChosenMembers({store, selector}));
    members.insert(members.end(), chosen.begin(), chosen.end());
  }
  if (options.selectors.empty()) {
    CAIRN_ASSIGN_OR_RETURN(members, ChosenMembers({store, ""}));
  }
  CAIRN_ASSIGN_OR_RETURN(const RecallCommands commands, RecallOf(options));
  const std::vector<std::string> paths = FilesOf(store, members);
  if (options.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(const auto stubs, StubsInTapeOrder(paths, commands));
    for (const std::string& path : stubs) fmt::print("{}\n", path);
    return kExitDone;
  }
  CAIRN_ASSIGN_OR_RETURN(const size_t recalled, Recall(paths, commands));
  if (paths.size() == members.size())
    fmt::print("{} of {} members were on tape\n", recalled, members.size());
  else
    fmt::print("{} of {} files, which hold {} members, were on tape\n", recalled, paths.size(),
               members.size());
  return kExitDone;
}

Result<int> PrintRestoreCost(const MemberName& name, const ArchiveMember& member,
                             const ArchiveOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedStep step, OpenCkpt(name.store.directory() + ":" + member.tar));
  const Manifest& manifest = step.reader->manifest();
  fmt::print("would restore {} as {}\n", MemberText(member), options.destination);
  CAIRN_RETURN_IF_ERROR(PrintDryRun(*step.reader,
                                    {{},
                                     manifest.bytes(),
                                     manifest.bytes(),
                                     manifest.bytes(),
                                     manifest.files.size() + 1,
                                     kArchivePeakMemory},
                                    "", false));
  return kExitDone;
}

// Brings back what the part of a step needs: of one in pieces those that tell what is in it, then those that
// hold the tensors.
Status RecallPart(const MemberName& name, const ArchiveMember& member, const ArchiveOptions& options) {
  if (options.tensors.empty() || !member.record || member.record->pieces.empty())
    return RecallMembers(options, name.store, {member});
  CAIRN_ASSIGN_OR_RETURN(const RecallCommands commands, RecallOf(options));
  const ArchiveRecord& record = *member.record;
  const TarPlace place = name.store.Place(record);
  const std::vector<std::string> first{std::string(kManifestName), std::string(kIndexName)};
  CAIRN_RETURN_IF_ERROR(Recall(FilesWith(place, record, first), commands).status());
  CAIRN_ASSIGN_OR_RETURN(const auto view, OpenMember({name.store, member.tar}));
  CAIRN_ASSIGN_OR_RETURN(const auto step, StepReader::Open(*view, view->root()));
  return Recall(FilesWith(place, record, FilesOfTensors(step->catalog(), options.tensors)), commands)
      .status();
}

// A part of a step: weights or tensors.
Status RestorePart(FileSystem& fs, const MemberName& name, const ArchiveMember& member,
                   const ArchiveOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const OpenedStep opened, OpenCkpt(name.store.directory() + ":" + member.tar));
  if (options.weights) return RestoreWeights(fs, opened.fs(), *opened.reader, options.destination);
  Progress progress("restoring tensors", opened.reader->catalog().bytes());
  CAIRN_ASSIGN_OR_RETURN(const size_t count,
                         RestoreTensors(fs, *opened.reader, options.tensors, options.destination,
                                        [&](uint64_t done) { progress.Update(done); }));
  fmt::print("{}, {} read from the step's files\n", Counted(count, "tensor"),
             HumanBytes(opened.reader->bytes_read()));
  return OkStatus();
}

Result<int> RunRestore(const ArchiveOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  const MemberName name = SplitMemberName(fs, options.store);
  CAIRN_ASSIGN_OR_RETURN(const ArchiveMember member, FindMember(name.store, name.selector));
  if (options.weights && !options.tensors.empty())
    return InvalidArgument("give --weights-only or --tensors, not both");
  if (options.dry_run) {
    for (const std::string& path : FilesOf(name.store, {member}))
      if (IsStub(path)) return NeedsRecall(path);
    return PrintRestoreCost(name, member, options);
  }
  CAIRN_RETURN_IF_ERROR(RecallPart(name, member, options));
  RemoveOutputsAtSignals();
  const bool part = (options.weights && member.form == Form::kFull) || !options.tensors.empty();
  const Status status = [&] {
    if (part) return RestorePart(fs, name, member, options);
    Progress progress("restoring " + MemberText(member), 2 * member.bytes);
    RestoreOptions restore;
    if (options.no_same_owner) restore.same_owner = false;
    return RestoreTar(
        {name.store, member.tar}, options.destination, [&](uint64_t done) { progress.Update(done); },
        restore);
  }();
  if (!status.ok()) {
    PrintProblem(status.message());
    return ArchiveExitCode(status);
  }
  if (part)
    fmt::print("restored a part of {} as {}, verified\n", MemberText(member), options.destination);
  else
    fmt::print("restored {}{} as {}: {}, verified\n", MemberText(member),
               member.form == Form::kWeights ? " (its weights in fp16; the store has no more of it)" : "",
               options.destination, HumanBytes(member.bytes));
  return kExitDone;
}

}  // namespace

void AddArchiveCommand(CLI::App& app, Verb& verb) {
  CLI::App* archive =
      app.add_subcommand("archive", "store steps as tar files, prove, check and restore them");
  archive->require_subcommand(1);
  archive->footer(HelpFooter("cairn archive run runs/gpt --store /tape/me/store",
                             "a source or a stored copy is damaged, or changed meanwhile"));
  AddArchiveRunCommand(*archive, verb);
  AddArchivePolicyCommands(*archive, verb);
  AddArchiveBundleCommand(*archive, verb);
  AddArchiveScheduleCommand(*archive, verb);

  const auto options = std::make_shared<ArchiveOptions>();
  const auto add = [&](const char* name, const char* description, Result<int> (*run)(const ArchiveOptions&)) {
    CLI::App* command = archive->add_subcommand(name, description);
    command->callback([options, &verb, run] { verb = [options, run] { return run(*options); }; });
    return command;
  };
  const auto add_recall = [&](CLI::App* command) {
    command
        ->add_option("--policy", options->policy,
                     "policy (TOML) with the [recall] commands and the [verify] budget to use")
        ->type_name("FILE");
    command
        ->add_option("--recall", options->recall.recall,
                     "command that brings files back from tape: dmget {paths}")
        ->option_text("CMD");
    command
        ->add_option("--recall-stat", options->recall.stat,
                     "command that prints a file's place on tape: hsm_pos {path}")
        ->option_text("CMD");
  };
  CLI::App* ls = add("ls", "list what a store holds, without reading the tar files", RunArchiveLs);
  ls->add_option("STORE", options->store, "the store")->required();
  ls->add_flag("--json", options->json, "print facts as JSON");
  ls->add_flag("--rebuild", options->rebuild,
               "rebuild the ledger from the store alone, and lost sidecars from their tars");
  ls->footer(HelpFooter("cairn archive ls /tape/me/store"));

  CLI::App* verify = add("verify", "read stored steps back and check every byte", RunArchiveVerify);
  verify->add_option("STORE", options->store, "the store, or STORE:RUN@STEP")->required();
  verify
      ->add_option("--sample", options->sample,
                   "check only this share of the store, and first the members checked longest ago")
      ->option_text("PERCENT");
  verify
      ->add_option("--per-night", options->per_night, "check only this size, like 200GB; at least one member")
      ->option_text("SIZE");
  verify->add_flag("--repair", options->repair, "repair damage from parity, or else from the source");
  add_recall(verify);
  verify->add_flag("--json", options->json, "print the list of problems as JSON");
  verify->footer(
      "Members on tape are read only if a recall command is given. Otherwise they are listed and counted, "
      "and only\n"
      "a member that you named is a failure.\n\n" +
      HelpFooter("cairn archive verify /tape/me/store:gpt@5000", "something stored is damaged"));

  CLI::App* restore = add("restore", "restore a step, its weights, or single tensors", RunRestore);
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
  add_recall(restore);
  restore->add_flag("--dry-run", options->dry_run, "say bytes, files, memory and time; write nothing");
  restore->footer(HelpFooter("cairn archive restore /tape/me/store:gpt@5000 runs/gpt/step-00005000",
                             "the stored copy is damaged; nothing is restored"));

  CLI::App* recall = add("recall", "bring members back from tape, in the order of the tape", RunRecall);
  recall->add_option("STORE", options->store, "the store")->required();
  recall->add_option("MEMBER", options->selectors, "RUN@STEP; default: all");
  add_recall(recall);
  recall->add_flag("--dry-run", options->dry_run,
                   "list what is on tape, in the order of the tape; recall nothing");
  recall->footer(HelpFooter("cairn archive recall /tape/me/store gpt@5000 --recall 'dmget {paths}'"));
}

}  // namespace cairn
