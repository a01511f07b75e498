// run_listing.h lists the steps; here they become rows or JSON, run by run. A step counts as archived if the
// store has a proven member of the same manifest digest, under any name. Of several states the table shows
// the most important: damage or a change, then bad health, then the archive.

#include <algorithm>
#include <ctime>
#include <map>
#include <set>

#include "ckpt/model/layout.h"
#include "tools/archive/policy/purge_clock.h"
#include "tools/archive/store/store.h"
#include "tools/check/run_listing.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/cli/text_table.h"
#include "tools/commands/commands.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr int kDefaultPurgeDays = 30;

struct LsOptions {
  std::vector<std::string> directories;
  std::string store;                   // whose members are listed; empty: none
  int purge_days = kDefaultPurgeDays;  // after the last access
  bool json = false;
};

std::string AgeText(int64_t seconds) {
  if (seconds < 2 * 86400) return HumanSeconds(static_cast<double>(std::max<int64_t>(0, seconds)));
  return fmt::format("{} d", seconds / 86400);
}

// The layout of the ranks: the training's own description, or else Cairn's topology.
std::string MeshText(const Manifest& manifest) {
  const std::string mesh = TextField(manifest.state, "mesh");
  return mesh.empty() ? ToString(manifest.topology) : mesh;
}

// "2%"; never 0 or 100 if it is not.
std::string ShareText(double share) {
  if (share < 0.01) return "under 1%";
  return fmt::format("{}%", std::min(99, static_cast<int>(share * 100)));
}

class Lister {
 public:
  explicit Lister(const LsOptions& options) : options_(options) {}

  // Reads the list of the store.
  Status ReadStore() {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members,
                           ListStore({FileSystem::Posix(), options_.store}));
    for (const ArchiveMember& member : members)
      if (member.state == MemberState::kVerified) archived_[member.record->manifest_digest] = member.tar;
    return OkStatus();
  }

  Status List(const std::string& argument) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<RunListing> runs, ListRuns(FileSystem::Posix(), argument));
    CAIRN_ASSIGN_OR_RETURN(const AccessTimes times, AccessTimesAt(runs.front().directory));
    for (const RunListing& run : runs) options_.json ? json_.push_back(ToJson(run, times)) : Print(run);
    if (!Caveat(times).empty() && (times != AccessTimes::kRelative || AnyIsDueSoon(runs)))
      caveats_.insert(Caveat(times));
    return OkStatus();
  }

  // Printed once, after all runs.
  void Finish() const {
    if (options_.json) return PrintJson(json_);
    for (const std::string_view caveat : caveats_) PrintProblem(fmt::format("note: {}", caveat));
  }

 private:
  // So soon that a day matters.
  bool AnyIsDueSoon(const std::vector<RunListing>& runs) const {
    constexpr double kSoonDays = 3;
    return std::ranges::any_of(runs, [&](const RunListing& run) {
      return std::ranges::any_of(run.steps, [&](const StepListing& step) { return Days(step) < kSoonDays; });
    });
  }

  double Days(const StepListing& step) const {
    return DaysUntilPurge(step.times.first_accessed, now_, options_.purge_days);
  }

  // The verified tar that contains the step; nullopt if the store has none.
  std::optional<std::string> Archived(const StepListing& step) const {
    if (!step.manifest) return std::nullopt;
    const auto found = archived_.find(ToHex(DigestOf(EncodeManifest(*step.manifest))));
    return found == archived_.end() ? std::nullopt : std::optional(found->second);
  }

  void Print(const RunListing& run) const {
    if (run.owner) return PrintNode(run);
    PrintLine("{}", run.directory);
    TextTable table({"step", "state", "tokens", "topology", "weight", "master", "exp_avg", "exp_avg_sq",
                     "rng", "files", "age", "purge in", "from", "tags"});
    for (const StepListing& step : run.steps) {
      table.Add(Row(step));
      table.Paint(1, ToneOf(step));
    }
    table.DropEmptyColumns();
    table.Print();
    for (const StepTag& tag : run.lost_tags)
      PrintLine("tag {}: step {}, which it names, is gone", tag.name, tag.step);
    for (const StepListing& step : run.steps)
      if (!step.trouble.empty()) PrintLine("step {}: {}", *step.step, step.trouble);
    for (const StepListing& step : run.steps)
      if (!step.unhealthy.empty()) PrintLine("step {}: unhealthy: {}", *step.step, step.unhealthy);
    if (!run.beside.empty()) PrintLine("{}", run.beside);
    for (const StepListing& step : run.steps)
      for (const Hold& hold : step.holds) PrintLine("step {}: {}", *step.step, hold.Text());
    for (const StepListing& step : run.steps)
      if (step.manifest && !step.manifest->shards.empty())
        PrintLine("step {}: virtual, its shards are in {}", *step.step,
                  step.manifest->DirectoryOf(step.path, ShardName(0)));
  }

  // Local steps of a node.
  void PrintNode(const RunListing& run) const {
    PrintLine("{}: local steps of this node, of the run {} (first used on {})", run.directory,
              run.owner->run_dir, run.owner->host);
    TextTable table({"step", "state", "shards here", "parity", "lost shards come from", "files", "age"});
    for (const StepListing& step : run.steps) {
      const NodePart& part = *step.part;
      std::vector<std::string> parity;
      for (const NodePart::Group& group : part.groups) parity.push_back(group.Text());
      table.Add({std::to_string(*step.step), step.state,
                 part.manifest
                     ? fmt::format("{} of {}", part.here.size(), part.here.size() + part.elsewhere.size())
                     : "-",
                 parity.empty() ? "none" : fmt::format("{}", fmt::join(parity, ", ")),
                 parity.empty() ? "-" : part.RebuiltFrom(), HumanBytesOrDash(step.times.bytes),
                 step.times.dated() ? AgeText(now_ - step.times.last_written) : "-"});
      table.Paint(1, step.trouble.empty() ? Tone::kPlain : Tone::kBad);
    }
    table.Print();
    for (const StepListing& step : run.steps)
      if (!step.trouble.empty()) PrintLine("step {}: {}", *step.step, step.trouble);
  }

  // The table leaves out the states of other optimizers; --json has their bytes.
  static constexpr Role kColumns[] = {Role::kWeight, Role::kMaster, Role::kExpAvg, Role::kExpAvgSq,
                                      Role::kRng};

  static uint64_t BytesOf(const StepListing& step, Role role) {
    const auto found = step.role_bytes.find(role);
    return found == step.role_bytes.end() ? 0 : found->second;
  }

  std::string StateText(const StepListing& step) const {
    const Trust trust = step.standing.trust;
    const bool suspect = trust == Trust::kDamaged || trust == Trust::kChanged;
    const bool whole = step.state == "committed" || step.state == cairn::Name(trust);
    if (whole && !suspect && !step.unhealthy.empty()) return "unhealthy";
    if (Archived(step) && !suspect) return "archived";
    if (trust == Trust::kPartlyVerified)
      return fmt::format("{} ({})", step.state, ShareText(step.standing.share));
    return step.state;
  }

  Tone ToneOf(const StepListing& step) const {
    const std::string state = StateText(step);
    if (state == "unhealthy" || state == "unreadable" || !step.trouble.empty()) return Tone::kBad;
    if (state == "verified" || state == "archived" || state == "sealed") return Tone::kGood;
    return state == "committed" ? Tone::kPlain : Tone::kNote;
  }

  std::vector<std::string> Row(const StepListing& step) const {
    std::vector<std::string> row = {std::to_string(*step.step), StateText(step)};
    if (step.manifest) {
      const int64_t tokens = IntField(step.manifest->state, "consumed_tokens");
      row.push_back(tokens > 0 ? std::to_string(tokens) : "-");
      row.push_back(MeshText(*step.manifest));
    } else {
      row.insert(row.end(), {"-", step.system.empty() ? "-" : step.system});
    }
    for (const Role role : kColumns) row.push_back(HumanBytesOrDash(BytesOf(step, role)));
    row.push_back(HumanBytesOrDash(step.times.bytes));
    row.push_back(step.times.dated() ? AgeText(now_ - step.times.last_written) : "-");
    row.push_back(DaysText(Days(step)));
    row.push_back(OriginText(step));
    row.push_back(step.tags.empty() ? "-" : fmt::format("{}", fmt::join(step.tags, ", ")));
    return row;
  }

  // The step that its training came from, with the run if that is another one.
  static std::string OriginText(const StepListing& step) {
    const auto origin = step.manifest ? step.manifest->descent.origin : std::nullopt;
    if (!origin) return "-";
    const bool own = origin->run == step.manifest->run;
    return own ? std::to_string(origin->step) : fmt::format("{}@{}", origin->run.substr(0, 8), origin->step);
  }

  ordered_json ToJson(const RunListing& run, AccessTimes times) const {
    ordered_json steps = ordered_json::array();
    for (const StepListing& step : run.steps) steps.push_back(ToJson(step));
    ordered_json lost = ordered_json::array();
    for (const StepTag& tag : run.lost_tags) lost.push_back({{"tag", tag.name}, {"step", tag.step}});
    ordered_json json = {{"run", run.directory},
                         {"access_times", Name(times)},
                         {"purge_days", options_.purge_days},
                         {"steps", steps}};
    if (!lost.empty()) json["lost_tags"] = std::move(lost);
    if (!run.beside.empty()) json["beside"] = run.beside;
    if (run.owner)
      json["local_steps_of"] = {
          {"run_id", run.owner->run}, {"run", run.owner->run_dir}, {"host", run.owner->host}};
    return json;
  }

  ordered_json ToJson(const StepListing& step) const {
    ordered_json json = {{"directory", step.path}, {"step", *step.step}, {"state", step.state}};
    if (!step.system.empty()) json["system"] = step.system;
    if (!step.trouble.empty()) json["trouble"] = step.trouble;
    if (step.manifest) {
      json["run_id"] = step.manifest->run;
      json["branch"] = BranchedStep::Of(*step.manifest).branch();
      if (const auto& from = step.manifest->descent.origin)
        json["from"] = {{"run_id", from->run}, {"branch", from->branch}, {"step", from->step}};
      json["tokens"] = IntField(step.manifest->state, "consumed_tokens");
      if (!step.manifest->shards.empty()) json["shards"] = step.manifest->shards;
      json["topology"] = TopologyJson(step.manifest->topology);
      json["mesh"] = MeshText(*step.manifest);
      for (const Role role : kColumns)
        json["bytes_by_role"][std::string(cairn::Name(role))] = BytesOf(step, role);
      for (const auto& [role, bytes] : step.role_bytes)
        json["bytes_by_role"][std::string(cairn::Name(role))] = bytes;
    }
    if (step.part) {
      json["shards_here"] = step.part->here;
      json["shards_elsewhere"] = step.part->elsewhere;
      json["parity"] = ordered_json::array();
      for (const NodePart::Group& group : step.part->groups)
        json["parity"].push_back({{"redundancy", group.Text()},
                                  {"shards", group.shards},
                                  {"needed", group.shards.size() - group.parity}});
    }
    for (const Check& check : step.checks) json["checks"].push_back(cairn::ToJson(check));
    for (const Hold& hold : step.holds)
      json["holds"].push_back({{"by", hold.holder},
                               {"there", hold.there},
                               {"since_unix_seconds", hold.modified_unix_seconds},
                               {"file", hold.file}});
    if (step.standing.trust == Trust::kPartlyVerified) json["verified_share"] = step.standing.share;
    if (const auto tar = Archived(step)) json["archived"] = *tar;
    if (!step.tags.empty()) json["tags"] = step.tags;
    if (!step.unhealthy.empty()) json["unhealthy"] = step.unhealthy;
    if (const auto health = step.manifest ? HealthOf(step.manifest->state) : std::nullopt)
      json["health"] = cairn::ToJson(*health);
    json["bytes"] = step.times.bytes;
    json["age_seconds"] = nullptr;
    if (step.times.dated()) json["age_seconds"] = now_ - step.times.last_written;
    json["days_until_purge"] = Days(step);
    return json;
  }

  const LsOptions& options_;
  std::map<std::string, std::string> archived_;  // manifest digest -> tar
  const int64_t now_ = std::time(nullptr);
  ordered_json json_ = ordered_json::array();
  std::set<std::string_view> caveats_;
};

Result<int> RunLs(const LsOptions& options) {
  Lister lister(options);
  if (!options.store.empty()) CAIRN_RETURN_IF_ERROR(lister.ReadStore());
  for (const std::string& directory : options.directories) CAIRN_RETURN_IF_ERROR(lister.List(directory));
  lister.Finish();
  return kExitDone;
}

}  // namespace

void AddLsCommand(CLI::App& app, Verb& verb) {
  const auto [ls, options] = AddVerb(
      app, verb, "ls", "list runs and steps: state, tokens, topology, bytes by role, age, purge", RunLs);
  ls->add_option("DIR", options->directories, "runs, steps, or directories of runs")->required();
  ls->add_option("--purge-days", options->purge_days,
                 "days after the last access at which the site deletes files")
      ->capture_default_str();
  ls->add_option("--store", options->store, "show which steps this archive store holds and has verified")
      ->type_name("STORE");
  ls->add_flag("--json", options->json, "print facts as JSON");
  ls->footer(
      "States: committed (its bytes were not checked since); partly verified (a sample of them was good);\n"
      "verified (cairn verify found every byte good); changed since verified (a file looks different now);\n"
      "damaged (it does not open, or verify found damage and no equally strong check has passed since);\n"
      "unreadable (the system refuses to read it); "
      "archived (whole as far as is known, and in --store); partial (being written, or left by a killed\n"
      "save); unhealthy (its loss, or that of the iteration after it, was bad; resume and retention\n"
      "skip it); superseded (saved again later, or given up: the training went back and saved a lower "
      "number); of another run (it lies in this directory, but the newest step does not descend from its\n"
      "run); deleting (retired, its removal is unfinished). FROM is the step that the training had loaded,\n"
      "or saved before. Of another\n"
      "system's: sealed (cairn seal committed it, and its files look as they did then); sealed with\n"
      "problems (by --anyway; cairn seal --newest skips it); changed since sealed; not sealed; one\n"
      "file (which seal and archive do not take by itself); being\n"
      "written (the system's tracker does not name it yet). Local steps (--save-local, local=), of which a\n"
      "node has a part: whole here; damaged here.\n\n" +
      HelpFooter("cairn ls /scratch/me/runs --purge-days 30"));
}

}  // namespace cairn
