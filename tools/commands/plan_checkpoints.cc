// Facts come from the run's steps, its events and its logs; a flag wins over what was measured. What is
// still missing then is an error that names the flag.

#include "tools/commands/plan_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "ckpt/base/parse_number.h"
#include "ckpt/io/file_system.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/flag_values.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/interval/framework_flags.h"
#include "tools/interval/run_facts.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr double kHour = 3600;
constexpr double kHopeless = 0.95;    // of the time
constexpr double kMostSeconds = 1e9;  // 30 years

const char* NameOf(TierKind kind) { return kTierNames[static_cast<size_t>(kind)]; }

// ---- Flags ----

// "memory:stall=0.5,save=2,load=5"
Result<TierCost> ParseTier(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const auto kind = std::ranges::find(kTierNames, text.substr(0, colon));
  if (kind == kTierNames.end())
    return InvalidArgument("--tier {}: the tier is memory, disk, run or archive", text);
  TierCost cost{.kind = static_cast<TierKind>(kind - kTierNames.begin()), .from = "--tier"};
  for (size_t at = colon; at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string field = text.substr(at + 1, end - at - 1);
    const size_t equals = std::min(field.find('='), field.size());
    const std::string name = field.substr(0, equals);
    double* const value = name == "stall"  ? &cost.stall
                          : name == "save" ? &cost.save
                          : name == "load" ? &cost.load
                                           : nullptr;
    const auto seconds =
        ParseNumber<double>(std::string_view(field).substr(std::min(equals + 1, field.size())), 0.0);
    if (value == nullptr || !seconds || !(*seconds <= kMostSeconds))
      return InvalidArgument("--tier {}: '{}' is not stall=, save= or load= with seconds", text, field);
    *value = *seconds;
    at = end;
  }
  if (!(cost.save > 0)) return InvalidArgument("--tier {}: save= is needed, and more than 0 seconds", text);
  if (cost.stall > cost.save)
    return InvalidArgument("--tier {}: the training waits for {:g} s of a save that takes {:g} s", text,
                           cost.stall, cost.save);
  return cost;
}

// "process=5", or "5" of unknown kind
Status TakeFailures(const std::string& text, FailureRecord& record) {
  const size_t equals = text.find('=');
  const std::string name = equals == std::string::npos ? "" : text.substr(0, equals);
  int64_t* const count = name.empty()        ? &record.of_unknown_kind
                         : name == "process" ? &record.seen[0]
                         : name == "node"    ? &record.seen[1]
                         : name == "several" ? &record.seen[2]
                                             : nullptr;
  const auto number =
      ParseNumber<int64_t>(std::string_view(text).substr(equals == std::string::npos ? 0 : equals + 1), 0);
  if (count == nullptr || !number || *number > 1'000'000)
    return InvalidArgument("--failures {}: not N, process=N, node=N or several=N with N <= 1000000", text);
  *count += *number;
  return OkStatus();
}

CLI::Option* Seconds(CLI::App& plan, const std::string& name, double& value, const std::string& help) {
  return AddTolerance(plan, name, value, help, "SECONDS")->check(CLI::Range(0.0, kMostSeconds));
}

void Put(const TierCost& cost, std::vector<TierCost>& tiers) {
  std::erase_if(tiers, [&](const TierCost& tier) { return tier.kind == cost.kind; });
  tiers.push_back(cost);
}

// ---- Facts ----

struct Facts : SavingFacts {
  MeasuredRun measured;
  FailureRecord record;
  bool mtbf_given = false;
  bool has_local() const {
    return std::ranges::any_of(tiers, [](const TierCost& tier) { return IsLocal(tier.kind); });
  }
};

Status TakeRates(const CheckpointFlags& options, const SharedPlanFlags& shared, Facts& facts) {
  facts.record = facts.measured.failures;
  facts.several_lost = facts.measured.several_lost;
  if (!options.failures.empty()) {
    facts.record = {.seconds = options.hours * kHour};
    facts.several_lost.clear();
    for (const std::string& text : options.failures) CAIRN_RETURN_IF_ERROR(TakeFailures(text, facts.record));
    if (!(options.hours > 0)) return InvalidArgument("--failures needs --hours, in which they were seen");
  }
  facts.mtbf_given = shared.mtbf_hours > 0;
  if (!facts.mtbf_given && options.failures.empty() && facts.measured.starts == 0)
    return InvalidArgument(
        "{}nothing shows how often this training fails; give --log, --failures with --hours, or --mtbf",
        options.run.empty() ? "" : options.run + " has no record of its starts: ");
  if (!facts.mtbf_given && facts.record.count() > 0 && !(facts.record.seconds > 0))
    return InvalidArgument("{} were recorded in no time of training; give --failures with --hours, or --mtbf",
                           Counted(static_cast<uint64_t>(facts.record.count()), "failure"));
  facts.failures =
      RatesOf(facts.record, facts.nodes, facts.mtbf_given ? std::optional(shared.mtbf_hours) : std::nullopt);
  return OkStatus();
}

Status TakeTiers(const CheckpointFlags& options, Facts& facts) {
  for (const auto& measured : {facts.measured.memory, facts.measured.disk, facts.measured.run})
    if (measured) Put(*measured, facts.tiers);
  for (const std::string& text : options.tiers) {
    CAIRN_ASSIGN_OR_RETURN(const TierCost cost, ParseTier(text));
    Put(cost, facts.tiers);
  }
  if (std::ranges::find(facts.tiers, TierKind::kRun, &TierCost::kind) == facts.tiers.end())
    return InvalidArgument(
        "how long a save to the run directory takes is not known; give a run whose starts are recorded, "
        "--log, or "
        "--tier "
        "run:stall=SECONDS,save=SECONDS,load=SECONDS");
  for (const TierCost& tier : facts.tiers)
    if (!(tier.save > 0))
      return InvalidArgument("a save to the tier {} took no time, by {}; give --tier {}:stall=,save=,load=",
                             NameOf(tier.kind), tier.from, NameOf(tier.kind));
  return OkStatus();
}

Result<Facts> FactsOf(const CLI::App& plan, const CheckpointFlags& options, const SharedPlanFlags& shared) {
  const std::pair<const char*, double> numbers[] = {{"--hours", options.hours},
                                                    {"--mtbf", shared.mtbf_hours},
                                                    {"--archive-mtbf", options.archive_hours},
                                                    {"--background-cost", options.background_cost}};
  for (const auto& [flag, number] : numbers)
    if (!std::isfinite(number)) return InvalidArgument("{} {}: not a finite number", flag, number);
  Facts facts;
  if (!options.run.empty())
    CAIRN_RETURN_IF_ERROR(MeasureRun(FileSystem::Posix(), options.run, facts.measured));
  if (!options.logs.empty()) CAIRN_RETURN_IF_ERROR(MeasureLogs(options.logs, facts.measured));
  const MeasuredRun& measured = facts.measured;
  facts.step_seconds =
      plan.count("--step-seconds") > 0 ? options.step_seconds : measured.step_seconds.value_or(-1);
  if (facts.step_seconds == 0) return InvalidArgument("--step-seconds 0: a step takes some time");
  if (facts.step_seconds < 0)
    return InvalidArgument(
        "how long a step takes is not known; give a run with two steps, --log, or --step-seconds");
  facts.step_bytes = options.step_bytes > 0 ? static_cast<double>(options.step_bytes) : measured.step_bytes;
  facts.nodes = shared.nodes > 0 ? shared.nodes : std::max<int64_t>(1, measured.nodes);
  facts.restart_seconds =
      plan.count("--restart-seconds") > 0 ? options.restart_seconds : measured.restart_seconds.value_or(0);
  facts.background_cost = options.background_cost;
  facts.archive_hours = options.archive_hours;
  CAIRN_RETURN_IF_ERROR(TakeTiers(options, facts));
  CAIRN_RETURN_IF_ERROR(TakeRates(options, shared, facts));
  return facts;
}

Result<std::vector<Parity>> ParitiesOf(const CheckpointFlags& options, int64_t nodes) {
  if (options.redundancy.empty()) return ParitiesFor(nodes);
  std::vector<Parity> parities;
  for (const std::string& text : options.redundancy) {
    CAIRN_ASSIGN_OR_RETURN(const Parity parity, ParseParity(text));
    if (parity.group > nodes && parity.parity > 0)
      return InvalidArgument("--redundancy {}: a group of {} nodes, of {}; give --nodes", text, parity.group,
                             nodes);
    parities.push_back(parity);
  }
  return parities;
}

// ---- Text ----

std::string Percent(double share) { return fmt::format("{:.3g} %", 100 * share); }
std::string Between(double low, double high) {
  return fmt::format("{:.3g} to {:.3g} %", 100 * low, 100 * high);
}
// "1.3 s", "28 s", "5 min 20 s"
std::string Short(double seconds) {
  return seconds < 10 ? fmt::format("{:.3g} s", seconds) : HumanSeconds(seconds);
}
std::string Every(double rate) { return rate > 0 ? Short(1 / rate) : "never"; }

void PrintFailures(const Facts& facts, const SharedPlanFlags& shared) {
  const FailureRecord& record = facts.record;
  const FailureRates& rates = facts.failures;
  if (facts.mtbf_given) {
    fmt::print("Failures: a node fails once in {:g} hours (--mtbf), one of {} once in {}\n",
               shared.mtbf_hours, facts.nodes, Every(rates.total.expected));
  } else if (record.count() == 0) {
    fmt::print(
        "Failures: none in {} of training on {}. Planned with one in {}, as if there had been one in {:g} "
        "hours "
        "of a node before; with 95 % confidence they are not more frequent than one in {}\n",
        Short(record.seconds), Counted(static_cast<uint64_t>(facts.nodes), "node"),
        Every(rates.total.expected), kNodeMtbfHours, Every(rates.total.high));
  } else {
    std::string kinds;
    for (size_t kind = 0; kind < kFailureKinds && record.kinds_known(); ++kind)
      if (record.seen[kind] > 0)
        kinds += fmt::format("{}{} of {}", kinds.empty() ? "" : ", ", record.seen[kind],
                             kind == 0   ? "a process"
                             : kind == 1 ? "a node"
                                         : "several nodes");
    fmt::print("Failures: {} in {} of training on {}{}: one in {} (9 of 10 such counts: {} to {})\n",
               record.count(), Short(record.seconds), Counted(static_cast<uint64_t>(facts.nodes), "node"),
               kinds.empty() ? "" : fmt::format(" ({})", kinds), Every(rates.total.expected),
               Every(rates.total.high), Every(rates.total.low));
  }
  if (facts.measured.failed_saves > 0)
    fmt::print("Saves that failed: {} (the run's events have the first three of each start, and why)\n",
               facts.measured.failed_saves);
  if (rates.shares_assumed)
    fmt::print(
        "Their kinds are not known, so {:.0f} % are taken to end a process, {:.0f} % a node, {:.0f} % "
        "several "
        "nodes (Moody et al. 2010, Dubey et al. 2024)\n",
        100 * kFailureShares[0], 100 * kFailureShares[1], 100 * kFailureShares[2]);
}

void PrintTiers(const Facts& facts, const SavingPlan& plan) {
  TextTable table({"tier", "save every", "that is", "a save costs", "usable after", "failures it serves",
                   "restart", "from"});
  for (const PlannedTier& tier : plan.tiers)
    table.Add({NameOf(tier.cost.kind), Counted(static_cast<uint64_t>(tier.interval), "step"),
               Short(static_cast<double>(tier.interval) * facts.step_seconds), Short(tier.lost_seconds),
               Short(tier.cost.save), fmt::format("one in {}", Every(tier.failures_per_second)),
               Short(facts.restart_seconds + tier.cost.load), tier.cost.from});
  table.Print();
}

void PrintChoices(const Facts& facts, const std::vector<SavingPlan>& plans) {
  TextTable table({"node-local steps", "bytes a byte", "failures beyond them", "lost", "9 of 10"});
  for (const SavingPlan& plan : plans) {
    const PlannedTier* local = plan.Local();
    table.Add({local == nullptr
                   ? "none"
                   : fmt::format("{}, redundancy {}", NameOf(local->cost.kind), plan.parity.Text()),
               local == nullptr ? "-" : fmt::format("{:.3g}", plan.parity.BytesPerByte()),
               local == nullptr ? "-" : Percent(plan.beyond_parity), Percent(plan.lost.total),
               Between(plan.low, plan.high)});
  }
  if (facts.has_local()) table.Print();
}

void PrintLost(const Facts& facts, const SavingPlan& plan) {
  fmt::print("Expected lost time: {} of the training: {} saves, {} work done again, {} restarts; {}: {}\n",
             Percent(plan.lost.total), Percent(plan.lost.saves), Percent(plan.lost.rework()),
             Percent(plan.lost.restarts),
             facts.mtbf_given ? "9 of 10 months lie within" : "within the bounds of the failures",
             Between(plan.low, plan.high));
  if (facts.restart_seconds == 0)
    fmt::print("How long a restart waits is not known, so it counts as nothing; --restart-seconds adds it\n");
}

void PrintKeep(const Facts& facts, const SharedPlanFlags& shared, const SavingPlan& plan,
               const KeepRules& keep) {
  std::string line = fmt::format("Keep: the newest {} steps of the run directory", keep.last);
  if (facts.step_bytes > 0)
    line += fmt::format(" ({} with one that is being written)",
                        HumanBytes(facts.step_bytes * static_cast<double>(keep.last + 1)));
  line += fmt::format(", every step that {} divides for the archive", keep.every);
  if (plan.Local() != nullptr) {
    line += fmt::format(", and {} on each node", keep.last_local);
    if (facts.step_bytes > 0)
      line += fmt::format(" ({} a node)",
                          HumanBytes(facts.step_bytes / static_cast<double>(facts.nodes) *
                                     static_cast<double>(keep.last_local + 1) * plan.parity.BytesPerByte()));
  }
  fmt::print("{}\n", line);
  if (keep.quota_is_short)
    PrintProblem(fmt::format("note: a quota of {} is too small for two steps and one that is being written",
                             HumanBytes(shared.quota_bytes)));
}

void PrintText(const CheckpointFlags& options, const SharedPlanFlags& shared, const Facts& facts,
               const std::vector<SavingPlan>& plans, const std::vector<FrameworkFlags>& flags,
               const KeepRules& keep) {
  const SavingPlan& best = plans.front();
  if (facts.measured.starts > 0)
    fmt::print("{}: {}\n", options.run.empty() ? "The logs" : options.run,
               Counted(static_cast<uint64_t>(facts.measured.starts), "start"));
  fmt::print("A step takes {}{}\n", Short(facts.step_seconds),
             facts.step_bytes > 0 ? fmt::format("; a checkpoint has {}", HumanBytes(facts.step_bytes)) : "");
  PrintFailures(facts, shared);
  fmt::print("\n");
  PrintTiers(facts, best);
  fmt::print("\n");
  PrintLost(facts, best);
  PrintChoices(facts, plans);
  PrintKeep(facts, shared, best, keep);
  fmt::print("\n");
  TextTable table({"framework", "flags"});
  for (const FrameworkFlags& each : flags) table.Add({each.framework, each.flags});
  table.Print();
  const bool some_without = best.Local() != nullptr;
  if (some_without) fmt::print("Those from NeMo on save only to the run directory\n");
}

// ---- JSON ----

ordered_json ToJson(const FailureRate& rate) {
  return {{"per_hour", rate.expected * kHour}, {"low", rate.low * kHour}, {"high", rate.high * kHour}};
}

ordered_json ToJson(const Facts& facts, const SavingPlan& plan) {
  ordered_json json = {{"redundancy", plan.parity.Text()},
                       {"beyond_parity", plan.beyond_parity},
                       {"lost",
                        {{"total", plan.lost.total},
                         {"low", plan.low},
                         {"high", plan.high},
                         {"saves", plan.lost.saves},
                         {"rework", plan.lost.rework()},
                         {"restarts", plan.lost.restarts}}},
                       {"tiers", ordered_json::array()}};
  for (const PlannedTier& tier : plan.tiers)
    json["tiers"].push_back({{"tier", NameOf(tier.cost.kind)},
                             {"interval", tier.interval},
                             {"seconds", static_cast<double>(tier.interval) * facts.step_seconds},
                             {"stall_seconds", tier.cost.stall},
                             {"lost_seconds", tier.lost_seconds},
                             {"save_seconds", tier.cost.save},
                             {"resume_seconds", facts.restart_seconds + tier.cost.load},
                             {"failures_per_hour", tier.failures_per_second * kHour},
                             {"from", tier.cost.from}});
  return json;
}

void PrintAsJson(const Facts& facts, const std::vector<SavingPlan>& plans,
                 const std::vector<FrameworkFlags>& flags, const KeepRules& keep) {
  ordered_json failures = {{"count", facts.record.count()},
                           {"hours", facts.record.seconds / kHour},
                           {"kinds_known", !facts.failures.shares_assumed},
                           {"given", facts.mtbf_given},
                           {"all", ToJson(facts.failures.total)}};
  for (size_t kind = 0; kind < kFailureKinds; ++kind)
    failures[kFailureNames[kind]] = ToJson(facts.failures.of[kind]);
  ordered_json json = {{"starts", facts.measured.starts},
                       {"nodes", facts.nodes},
                       {"step_seconds", facts.step_seconds},
                       {"step_bytes", facts.step_bytes},
                       {"failed_saves", facts.measured.failed_saves},
                       {"failures", std::move(failures)},
                       {"plan", ToJson(facts, plans.front())},
                       {"others", ordered_json::array()},
                       {"keep",
                        {{"last", keep.last},
                         {"last_local", keep.last_local},
                         {"every", keep.every},
                         {"quota_is_short", keep.quota_is_short}}}};
  for (size_t i = 1; i < plans.size(); ++i) json["others"].push_back(ToJson(facts, plans[i]));
  for (const FrameworkFlags& each : flags) json["flags"][each.framework] = each.flags;
  PrintJson(json);
}

}  // namespace

void DeclareCheckpointOptions(CLI::App& plan, CheckpointFlags& o) {
  CLI::Option* checkpoints =
      plan.add_option(
              "--checkpoints", o.run,
              "instead of a topology: how often to save where, from this run's steps and events; without "
              "RUN from the flags below")
          ->expected(0, 1)
          ->option_text("[RUN]");
  const auto needs = [&](CLI::Option* option) { option->needs(checkpoints); };
  needs(plan.add_option("--log", o.logs, "logs of the training, in the order of its starts")
            ->option_text("FILE..."));
  needs(plan.add_option(
                "--tier", o.tiers,
                "seconds of a tier (memory, disk, run, archive): that the training waits for a save, until "
                "a restart can use it, and to load it")
            ->option_text("TIER:stall=S,save=S,load=S"));
  needs(plan.add_option("--failures", o.failures,
                        "failures seen: N, or process=N, node=N and several=N by what was lost; with --hours")
            ->delimiter(',')
            ->option_text("KIND=N"));
  needs(plan.add_option("--hours", o.hours, "hours of training in which --failures were seen")
            ->check(CLI::PositiveNumber)
            ->option_text("HOURS"));
  needs(Seconds(plan, "--step-seconds", o.step_seconds, "time of one step"));
  needs(Seconds(plan, "--restart-seconds", o.restart_seconds,
                "from a failure until the load begins: the queue, the launch"));
  needs(plan.add_option("--background-cost", o.background_cost,
                        "share of a save's time that the training loses while it continues (0.01)")
            ->check(CLI::Range(0.0, 1.0))
            ->option_text("SHARE"));
  needs(AddSize(plan, "--checkpoint-bytes", o.step_bytes, "size of a checkpoint"));
  needs(plan.add_option(
                "--redundancy", o.redundancy,
                "parity of node-local steps to consider: none, xor:K, rs:K+M; default: none, xor:8, rs:8+2")
            ->option_text("SCHEME"));
  needs(plan.add_option("--archive-mtbf", o.archive_hours,
                        "hours between losses of the run directory, for the tier archive (43800)")
            ->check(CLI::PositiveNumber)
            ->option_text("HOURS"));
}

Result<int> PlanCheckpoints(const CLI::App& plan, const CheckpointFlags& options,
                            const SharedPlanFlags& shared) {
  CAIRN_ASSIGN_OR_RETURN(const Facts facts, FactsOf(plan, options, shared));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Parity> parities, ParitiesOf(options, facts.nodes));
  const std::vector<SavingPlan> plans = PlansOf(facts, parities);
  const SavingPlan& best = plans.front();
  const KeepRules keep = KeepRulesOf(facts, best, shared.keep_last, static_cast<double>(shared.quota_bytes));
  const std::vector<FrameworkFlags> flags = FlagsOf(best, PlanOf(facts, std::nullopt, {}), keep);
  if (shared.json)
    PrintAsJson(facts, plans, flags, keep);
  else
    PrintText(options, shared, facts, plans, flags, keep);
  if (best.lost.total < kHopeless) return kExitDone;
  PrintProblem(fmt::format("this training hardly moves: it fails once in {}, and loses {} of its time",
                           Every(facts.failures.total.expected), Percent(best.lost.total)));
  return kExitCheckFailed;
}

}  // namespace cairn
