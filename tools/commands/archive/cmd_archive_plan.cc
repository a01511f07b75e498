#include <ctime>

#include "tools/archive/policy/policy_plan.h"
#include "tools/archive/policy/policy_report.h"
#include "tools/archive/policy/purge_clock.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/commands/archive/archive_verbs.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

std::string ActionText(const PlanEntry& e) {
  if (e.trouble) return "cannot";
  std::string text = e.store_full && e.store_weights ? "store full, fp16"
                     : e.store_full                  ? (e.source.native ? "store full" : "store files")
                     : e.store_weights               ? "store fp16"
                                                     : "-";
  if (e.delete_source) text = text == "-" ? "delete source" : text + ", delete source";
  return text;
}

ordered_json ToJson(const PlanEntry& e) {
  return {{"run", e.run},
          {"run_id", e.id},
          {"step", e.step},
          {"member", e.title},
          {"source", e.source.path},
          {"store_full", e.store_full},
          {"store_weights", e.store_weights},
          {"delete_source", e.delete_source},
          {"why", e.why},
          {"bytes", e.bytes},
          {"inodes", e.inodes},
          {"purge_days", e.purge_days},
          {"finish_days", e.finish_days},
          {"late", e.late},
          {"trouble", e.trouble}};
}

void PrintPlanJson(const Plan& plan) {
  ordered_json entries = ordered_json::array();
  for (const PlanEntry& e : plan.entries) entries.push_back(ToJson(e));
  PrintJson({{"entries", entries},
             {"bytes", plan.bytes},
             {"inodes", plan.inodes},
             {"bandwidth", plan.bandwidth},
             {"bundling", BundlingJson(plan.bundling)},
             {"failures", plan.failures},
             {"notes", plan.notes},
             {"caveats", plan.caveats}});
}

void PrintPlan(const Plan& plan, const Policy& policy) {
  std::vector<std::string> columns{"member", "do", "purge in", "proven in", "size", "why"};
  if (plan.ambiguous) columns.emplace_back("source");
  TextTable table(columns);
  for (const PlanEntry& e : plan.entries) {
    std::vector<std::string> row{e.title,
                                 ActionText(e),
                                 DaysText(e.purge_days),
                                 !e.stores()         ? "-"
                                 : e.finish_days < 0 ? "?"
                                                     : HumanSeconds(e.finish_days * 86400),
                                 HumanBytesOrDash(e.bytes),
                                 e.why};
    if (plan.ambiguous) row.push_back(e.source.path);
    table.Add(row);
  }
  table.Print();
  fmt::print("to store: {} in {} files", HumanBytesOrDash(plan.bytes), plan.inodes);
  if (plan.bandwidth > 0)
    fmt::print(", {} at {}/s", HumanSeconds(static_cast<double>(plan.bytes) / plan.bandwidth),
               HumanBytes(plan.bandwidth));
  else if (plan.bytes > 0)
    fmt::print("; no bandwidth is known, so only the deadline of the purge itself was checked");
  fmt::print("\n");
  PrintBundling(plan.bundling, policy);
  for (const auto* notes : {&plan.notes, &plan.caveats})
    for (const std::string& note : *notes) fmt::print("note: {}\n", note);
}

}  // namespace

Result<int> RunArchivePlan(const ArchivePlanOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(options.policy));
  const RunReport last = ReadLastReport(fs, policy);
  CAIRN_ASSIGN_OR_RETURN(const Plan plan, MakePlan(fs, policy, last.bytes_per_second, std::time(nullptr)));
  options.json ? PrintPlanJson(plan) : PrintPlan(plan, policy);
  for (const std::string& failure : plan.failures) PrintProblem(failure);
  return plan.failures.empty() ? kExitDone : kExitCheckFailed;
}

void AddArchivePlan(CLI::App& archive, Verb& verb) {
  const auto [plan, options] =
      AddVerb(archive, verb, "plan",
              "show what a policy would store now, why, and whether there is time for it", RunArchivePlan);
  plan->add_option("POLICY", options->policy, "the policy, a TOML file")->required();
  plan->add_flag("--json", options->json, "print facts as JSON");
  plan->footer(
      "Relative paths in a policy start at the directory of its file, ~/ at $HOME. Its keys:\n\n" +
      PolicyKeysText() + "\n" +
      HelpFooter("cairn archive plan archive.toml",
                 "a deadline or a quota cannot be met, a step to store is damaged, or something that the\n"
                 "policy names is missing or cannot be read"));
}

}  // namespace cairn
