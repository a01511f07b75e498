#include "tools/cmd_ls.h"

#include <ctime>
#include <map>
#include <memory>

#include "ckpt/layout.h"
#include "tools/archive/purge_clock.h"
#include "tools/archive/store.h"
#include "tools/exit_code.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/reshape_run.h"
#include "tools/run_listing.h"
#include "tools/text_table.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

constexpr int kDefaultPurgeDays = 30;

struct LsOptions {
  std::vector<std::string> directories;
  std::string store;                   // whose members are told; empty: none
  int purge_days = kDefaultPurgeDays;  // after the last access
  bool json = false;
};

std::string AgeText(int64_t seconds) {
  if (seconds < 2 * 86400) return HumanSeconds(static_cast<double>(std::max<int64_t>(0, seconds)));
  return fmt::format("{} d", seconds / 86400);
}

std::string PurgeText(double days) { return days < 0 ? "overdue" : fmt::format("{:.1f} d", days); }

std::string SizeText(uint64_t bytes) { return bytes == 0 ? "-" : HumanBytes(static_cast<double>(bytes)); }

class Lister {
 public:
  explicit Lister(const LsOptions& options) : options_(options) {}

  // Learns what the store holds.
  Status ReadStore() {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members,
                           ListStore(FileSystem::Posix(), options_.store));
    for (const ArchiveMember& member : members)
      if (member.state == MemberState::kVerified) archived_[member.record->manifest_digest] = member.tar;
    return OkStatus();
  }

  Status List(const std::string& directory) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<RunListing> runs, ListRuns(FileSystem::Posix(), directory));
    CAIRN_ASSIGN_OR_RETURN(const AccessTimes times, AccessTimesAt(directory));
    for (const RunListing& run : runs)
      options_.json ? json_.push_back(ToJson(run, times)) : Print(run, times);
    return OkStatus();
  }

  const ordered_json& json() const { return json_; }

 private:
  double Days(const StepListing& step) const {
    return DaysUntilPurge(step.accessed_unix_seconds, now_, options_.purge_days);
  }

  // The tar that holds the step; nothing where the store has none that was verified.
  std::optional<std::string> Archived(const StepListing& step) const {
    if (!step.manifest) return std::nullopt;
    const auto found = archived_.find(ToHex(DigestOf(EncodeManifest(*step.manifest))));
    return found == archived_.end() ? std::nullopt : std::optional(found->second);
  }

  void Print(const RunListing& run, AccessTimes times) const {
    fmt::print("{}\n", run.directory);
    TextTable table({"step", "state", "tokens", "topology", "weight", "master", "exp_avg", "exp_avg_sq",
                     "rng", "files", "age", "purge in"});
    for (const StepListing& step : run.steps) table.Add(Row(step));
    table.Print();
    for (const StepListing& step : run.steps)
      if (!step.trouble.empty()) fmt::print("step {}: {}\n", step.step, step.trouble);
    for (const StepListing& step : run.steps)
      if (!step.unhealthy.empty()) fmt::print("step {}: unhealthy: {}\n", step.step, step.unhealthy);
    for (const StepListing& step : run.steps)
      if (step.manifest && !step.manifest->shards.empty())
        fmt::print("step {}: virtual, its shards are in {}\n", step.step,
                   step.manifest->DirectoryOf(step.directory, ShardName(0)));
    if (!Caveat(times).empty()) fmt::print("{}\n", Caveat(times));
  }

  std::vector<std::string> Row(const StepListing& step) const {
    const bool whole = step.state == "committed" || step.state == "verified";
    std::vector<std::string> row = {std::to_string(step.step), whole && !step.unhealthy.empty() ? "unhealthy"
                                                               : Archived(step)                 ? "archived"
                                                                                                : step.state};
    if (step.manifest) {
      row.push_back(std::to_string(IntField(step.manifest->state, "consumed_tokens")));
      row.push_back(ToString(step.manifest->topology));
    } else {
      row.insert(row.end(), 2, "-");
    }
    for (uint64_t bytes : step.role_bytes) row.push_back(SizeText(bytes));
    row.push_back(SizeText(step.bytes));
    row.push_back(AgeText(now_ - step.modified_unix_seconds));
    row.push_back(PurgeText(Days(step)));
    return row;
  }

  ordered_json ToJson(const RunListing& run, AccessTimes times) const {
    ordered_json steps = ordered_json::array();
    for (const StepListing& step : run.steps) steps.push_back(ToJson(step));
    return {{"run", run.directory},
            {"access_times", Name(times)},
            {"purge_days", options_.purge_days},
            {"steps", steps}};
  }

  ordered_json ToJson(const StepListing& step) const {
    ordered_json json = {{"directory", step.directory}, {"step", step.step}, {"state", step.state}};
    if (!step.trouble.empty()) json["trouble"] = step.trouble;
    if (step.manifest) {
      json["run_id"] = step.manifest->run;
      json["tokens"] = IntField(step.manifest->state, "consumed_tokens");
      if (!step.manifest->shards.empty()) json["shards"] = step.manifest->shards;
      json["topology"] = TopologyJson(step.manifest->topology);
      for (size_t i = 0; i < std::size(kAllRoles); ++i)
        json["bytes_by_role"][std::string(cairn::Name(kAllRoles[i]))] = step.role_bytes[i];
    }
    if (step.checked)
      json["verified"] = {{"unix_seconds", step.checked->unix_seconds},
                          {"checked", step.checked->checked},
                          {"bytes", step.checked->bytes},
                          {"problems", step.checked->problems}};
    if (const auto tar = Archived(step)) json["archived"] = *tar;
    if (!step.unhealthy.empty()) json["unhealthy"] = step.unhealthy;
    if (const auto health = step.manifest ? HealthOf(step.manifest->state) : std::nullopt)
      json["health"] = cairn::ToJson(*health);
    json["bytes"] = step.bytes;
    json["age_seconds"] = now_ - step.modified_unix_seconds;
    json["days_until_purge"] = Days(step);
    return json;
  }

  const LsOptions& options_;
  std::map<std::string, std::string> archived_;  // manifest digest -> tar
  const int64_t now_ = std::time(nullptr);
  ordered_json json_ = ordered_json::array();
};

Result<int> RunLs(const LsOptions& options) {
  Lister lister(options);
  if (!options.store.empty()) CAIRN_RETURN_IF_ERROR(lister.ReadStore());
  for (const std::string& directory : options.directories) CAIRN_RETURN_IF_ERROR(lister.List(directory));
  if (options.json) PrintJson(lister.json());
  return kExitDone;
}

}  // namespace

void AddLsCommand(CLI::App& app, Verb& verb) {
  const auto options = std::make_shared<LsOptions>();
  CLI::App* ls =
      app.add_subcommand("ls", "list runs and steps: state, tokens, topology, bytes by role, age, purge");
  ls->add_option("DIR", options->directories, "runs, steps, or directories of runs")->required();
  ls->add_option("--purge-days", options->purge_days,
                 "days after the last access at which the site deletes files")
      ->capture_default_str();
  ls->add_option("--store", options->store, "tell which steps this archive store holds, verified");
  ls->add_flag("--json", options->json, "print facts as JSON");
  ls->footer(
      "States: committed; verified (cairn verify found it good); archived (committed, and in --store); "
      "damaged (it "
      "does not open, or verify found it so); partial (being "
      "written, or left by a killed save);\n"
      "unhealthy (its loss, or that of the iteration after it, was bad; resume and retention pass it over); "
      "superseded (saved again later); deleting (retired, its removal is unfinished).\n\n" +
      HelpFooter("cairn ls /scratch/me/runs --purge-days 30"));
  ls->callback([options, &verb] { verb = [options] { return RunLs(*options); }; });
}

}  // namespace cairn
