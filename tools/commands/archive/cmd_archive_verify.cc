// Files that are needed are requested from tape before anything is read: a read of a file on tape may wait
// forever. Members that are still on tape are reported and not read. The results go into the ledger, so that
// the next budget starts with the members that were checked longest ago.

#include <algorithm>

#include "tools/archive/bundle/scrub.h"
#include "tools/archive/store/ledger.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/progress.h"
#include "tools/commands/archive/archive_verbs.h"
#include "tools/place/place.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct VerifyOptions {
  std::string store;  // or STORE:RUN@STEP
  std::string sample, per_night;
  bool repair = false;
  RecallFlags recall;
  bool json = false;
};

void PrintReport(const ArchiveMember& member, const VerifyReport& report) {
  for (const Problem& problem : report.problems) PrintLine("{}: {}", MemberText(member), ToString(problem));
  if (!report.trouble.ok())
    PrintProblem(
        fmt::format("{}: could not be read to the end: {}", MemberText(member), report.trouble.message()));
  if (report.good())
    PrintLine("{}: whole, {} read back{}", MemberText(member), HumanBytes(report.bytes_checked),
              member.record ? "" : "; it has no sidecar; cairn archive run of its source writes one");
}

// The members within the budget, those checked longest ago first.
Result<std::vector<ArchiveMember>> ChooseByBudget(const VerifyOptions& options, const Store& store,
                                                  const std::vector<ArchiveMember>& members) {
  Policy policy;  // its [verify] applies unless a flag says otherwise
  if (!options.recall.policy.empty()) {
    CAIRN_ASSIGN_OR_RETURN(policy, ReadPolicy(options.recall.policy));
  }
  const auto fraction =
      options.sample.empty() ? std::optional(policy.verify_sample) : ParsePercent(options.sample);
  const auto bytes = options.per_night.empty() ? std::optional(static_cast<double>(policy.verify_per_night))
                                               : ParseSize(options.per_night);
  if (!fraction) return InvalidArgument("--sample '{}' is not a share; write 2%", options.sample);
  if (!bytes) return InvalidArgument("--per-night '{}' is not a size; write 200GB", options.per_night);
  CAIRN_ASSIGN_OR_RETURN(std::vector<CheckedMember> all, ListChecked(store));
  std::erase_if(all, [&](const CheckedMember& entry) {
    return std::ranges::find(members, entry.member.tar, &ArchiveMember::tar) == members.end();
  });
  std::vector<ArchiveMember> chosen;
  for (const CheckedMember& entry : ChooseToScrub(std::move(all), *fraction, static_cast<uint64_t>(*bytes)))
    chosen.push_back(entry.member);
  return chosen;
}

struct VerifyPlan {
  std::vector<ArchiveMember> members;  // to read back
  std::vector<ArchiveMember> on_tape;  // not read: there is no recall command
};

// Members on tape without a recall command are left out, so that they do not use up the budget night after
// night.
Result<VerifyPlan> PlanVerify(const VerifyOptions& options, const MemberName& name,
                              const RecallCommands& commands) {
  VerifyPlan plan;
  CAIRN_ASSIGN_OR_RETURN(plan.members, ChosenMembers(name));
  if (commands.recall.empty()) {
    const auto taped = std::ranges::stable_partition(plan.members, [&](const ArchiveMember& member) {
      return CheckOnDisk(name.store.fs(), FilesOf(name.store, {member})).ok();
    });
    plan.on_tape.assign(taped.begin(), taped.end());
    plan.members.erase(taped.begin(), taped.end());
  }
  if (options.sample.empty() && options.per_night.empty() && options.recall.policy.empty()) return plan;
  CAIRN_ASSIGN_OR_RETURN(plan.members, ChooseByBudget(options, name.store, plan.members));
  return plan;
}

// Repairs a member; the report becomes that of the repaired one.
Status RepairAndVerify(const Store& store, ArchiveMember& member, VerifyReport& report) {
  CAIRN_ASSIGN_OR_RETURN(const LockFile lock, LockStore(store));
  CAIRN_ASSIGN_OR_RETURN(const std::string how, RepairMember(store, member));
  member = DescribeMember({store, member.tar});
  report = VerifyMember(store, member);
  PrintProblem(fmt::format("note: {}: {}", MemberText(member), how));
  return OkStatus();
}

// A file that a recall did not bring back is not read: that might wait for ever.
VerifyReport VerifyUnlessOnTape(const Store& store, const ArchiveMember& member, bool quiet) {
  for (const std::string& path : FilesOf(store, {member}))
    if (IsStub(store.fs(), path))
      return {.problems = {
                  {path, 0, "",
                   "still on tape after the recall command, or lost: it has too few blocks for its bytes"}}};
  Progress progress("verifying " + MemberText(member), member.bytes, !quiet);
  return VerifyMember(store, member, [&](uint64_t done) { progress.Update(done); });
}

// Reports the members that were not read; a failure only if the user named one of them.
int FinishVerify(const VerifyPlan& plan, const MemberName& name, const VerifyOptions& options,
                 ordered_json list, int code) {
  for (const ArchiveMember& m : plan.on_tape) {
    list.push_back({{"run", m.run}, {"step", m.step}, {"tar", m.tar}, {"ok", nullptr}, {"on_tape", true}});
    if (!options.json) PrintLine("{}: on tape, needs recall; not checked", MemberText(m));
  }
  if (options.json) PrintJson(list);
  if (plan.on_tape.empty()) return code;
  const std::string how = "give --recall CMD, or --policy with [recall] commands";
  if (!name.selector.empty()) {
    PrintProblem(fmt::format("{}: on tape, needs recall; {}", options.store, how));
    return std::max<int>(code, kExitTrouble);
  }
  PrintProblem(fmt::format("note: {} member{} on tape and not checked ({} checked); {}", plan.on_tape.size(),
                           plan.on_tape.size() == 1 ? " is" : "s are", plan.members.size(), how));
  return code;
}

Result<int> RunArchiveVerify(const VerifyOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  const auto [store, selector] = SplitMemberName(fs, options.store);
  const MemberName name{{fs, store}, selector};
  CAIRN_ASSIGN_OR_RETURN(const RecallCommands commands, options.recall.Commands());
  CAIRN_ASSIGN_OR_RETURN(VerifyPlan plan, PlanVerify(options, name, commands));
  CAIRN_RETURN_IF_ERROR(TryRecall(name.store.fs(), FilesOf(name.store, plan.members), commands).status());
  Result<Ledger> ledger = Ledger::Open(name.store);  // fails for a read-only store
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
    if (ledger.ok() && m.record && (report.trouble.ok() || !report.problems.empty()))
      (void)ledger->SetScrub(
          *m.record, {std::time(nullptr), report.problems.empty() ? "" : ToString(report.problems.front())});
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

}  // namespace

void AddArchiveVerify(CLI::App& archive, Verb& verb) {
  const auto [verify, options] =
      AddVerb(archive, verb, "verify", "read stored steps back and check every byte", RunArchiveVerify);
  verify->add_option("STORE", options->store, "the store, or STORE:RUN@STEP")->required();
  verify
      ->add_option("--sample", options->sample,
                   "check only this share of the store, and first the members checked longest ago")
      ->option_text("PERCENT");
  verify
      ->add_option("--per-night", options->per_night, "check only this size, like 200GB; at least one member")
      ->option_text("SIZE");
  verify->add_flag("--repair", options->repair, "repair damage from parity, or else from the source");
  options->recall.AddTo(*verify);
  verify->add_flag("--json", options->json, "print the list of problems as JSON");
  verify->footer(
      "Members on tape are read only if a recall command is given. Otherwise they are listed and counted,\n"
      "and only a member that you named is a failure.\n\n" +
      HelpFooter("cairn archive verify /tape/me/store:gpt@5000", "something stored is damaged"));
}

}  // namespace cairn
