#include "tools/archive/policy/prune.h"
#include "tools/archive/store/claims.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/commands/archive/archive_verbs.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct PruneOptions {
  std::string policy;
  std::vector<std::string> adopt;
  bool dry_run = false;
  bool json = false;
};

// Removes what no class keeps, after taking over claims if asked to.
Result<std::vector<PruneEntry>> PruneStore(const Policy& policy, const PruneOptions& options) {
  const Store store(FileSystem::Posix(), policy.store);
  CAIRN_ASSIGN_OR_RETURN(const LockFile lock, LockStore(store));
  CAIRN_RETURN_IF_ERROR(PrepareStoreAndTell(store));
  if (!options.adopt.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const size_t adopted, AdoptClaims(store, options.adopt, policy.labels().front()));
    if (!options.json) fmt::print("took over {} members\n", adopted);
  }
  return Prune(store.fs(), policy);
}

Result<int> RunPrune(const PruneOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(options.policy));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<PruneEntry> entries, options.dry_run
                                                                    ? PlanPrune(fs, policy, options.adopt)
                                                                    : PruneStore(policy, options));
  ordered_json list = ordered_json::array();
  TextTable table({"member", "do", "size", "why", "tar"});
  const auto named_twice = [](const PruneEntry& e) { return e.title.find('~') != std::string::npos; };
  uint64_t freed = 0;
  for (const PruneEntry& e : entries) {
    if (e.remove) freed += e.bytes;
    table.Add({e.title, e.remove ? "remove" : "keep", HumanBytesOrDash(e.bytes), e.why,
               named_twice(e) ? fmt::format("{} of {}", e.file, e.source) : e.file});
    list.push_back({{"run", e.run},
                    {"step", e.step},
                    {"member", e.title},
                    {"source", e.source},
                    {"tar", e.tar},
                    {"file", e.file},
                    {"remove", e.remove},
                    {"drop_claim", e.drop_claim},
                    {"bytes", e.bytes},
                    {"why", e.why}});
  }
  options.json ? PrintJson(list) : table.Print();
  CAIRN_ASSIGN_OR_RETURN(const std::vector<std::string> orphans, OrphanedClaims(fs, policy));
  for (const std::string& line : orphans)
    if (!options.json) fmt::print("note: {}\n", line);
  if (!options.json) fmt::print("{} {}\n", options.dry_run ? "would free" : "freed", HumanBytesOrDash(freed));
  return kExitDone;
}

}  // namespace

void AddArchivePrune(CLI::App& archive, Verb& verb) {
  const auto [prune, options] =
      AddVerb(archive, verb, "prune", "remove members that no class of a policy keeps", RunPrune);
  prune->add_option("POLICY", options->policy, "the policy, a TOML file")->required();
  prune->add_flag("--json", options->json, "print facts as JSON");
  prune
      ->add_option("--adopt", options->adopt,
                   "take over another claim: a policy's tag, or \"policy:PATH\" of a deleted policy, \"by "
                   "hand\", or \"unknown\" for members of older versions; repeatable")
      ->allow_extra_args(false)
      ->option_text("CLAIM");
  prune->add_flag("--dry-run", options->dry_run, "show what would be removed and why; remove nothing");
  prune->footer(
      "A member is removed only if no other policy or person claims it. What another policy or a person "
      "stored or\n"
      "claims stays. These stay regardless of the classes: trees, runs that are not on scratch, members\n"
      "that are not verified, the newest healthy copy of each run, and a full copy whose weights a class\n"
      "keeps and that are stored nowhere else. Runs are known by their identity, not by their name. A\n"
      "bundle is removed only if no class keeps any of its members.\n\n" +
      HelpFooter("cairn archive prune archive.toml --dry-run"));
}

}  // namespace cairn
