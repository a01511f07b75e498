// The verb plans under the store's lock, recalls all files of the plan from tape at once, and then makes the
// bundles, with a new plan before each (bundler.h).

#include <cstdio>
#include <memory>
#include <optional>

#include "tools/archive/tar/recall.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/human.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/commands/archive/archive_verbs.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;

struct BundleOptions {
  std::string policy;
  bool dry_run = false;
  bool json = false;
};

// Bundles everything that waits, or prints the plan.
Result<int> RunBundle(const BundleOptions& options) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_ASSIGN_OR_RETURN(const Policy policy, ReadPolicy(options.policy));
  if (policy.bundle.target == 0) return InvalidArgument("{}: bundle = \"100GB\" is missing", options.policy);
  const Store store(fs, policy.store);
  std::optional<LockFile> lock;
  if (!options.dry_run) {
    CAIRN_ASSIGN_OR_RETURN(lock, LockStore(store));
    CAIRN_RETURN_IF_ERROR(PrepareStoreAndTell(store));
  }
  CAIRN_ASSIGN_OR_RETURN(const BundlePlan plan, PlanBundlesBy(fs, policy, /*all=*/true));
  if (options.json) PrintJson(BundlingJson(plan));
  if (options.dry_run) {
    if (!options.json) PrintBundling(plan, policy);
    return kExitDone;
  }
  std::vector<std::string> paths;
  for (const BundleDraft& draft : plan.bundles)
    for (const std::string& file : draft.files) paths.push_back(store.Path(file));
  CAIRN_RETURN_IF_ERROR(Recall(FileSystem::Posix(), paths, policy.recall).status());
  CAIRN_ASSIGN_OR_RETURN(const auto problems,
                         MakeBundlesBy(fs, policy, /*all=*/true, PrintedBundling(options.json)));
  for (const std::string& problem : problems) PrintProblem(problem);
  return problems.empty() ? kExitDone : kExitCheckFailed;
}

}  // namespace

PolicyEvents PrintedBundling(bool quiet) {
  PolicyEvents events;
  const auto progress = std::make_shared<std::optional<Progress>>();
  events.bundling = [=](const BundleDraft& draft) -> ByteProgress {
    progress->emplace("bundling " + draft.name, 2 * draft.bytes, !quiet);
    return [=](uint64_t done) { (*progress)->Update(done); };
  };
  events.bundled = [=](const BundleDraft& draft, const Bundle& bundle) {
    progress->reset();
    if (quiet) return;
    fmt::print("bundled {} members as {}: {}, read back and verified; {}\n", bundle.members.size(),
               bundle.name, HumanBytes(bundle.tar_bytes), draft.why);
    std::fflush(stdout);
  };
  return events;
}

ordered_json BundlingJson(const BundlePlan& bundling) {
  ordered_json bundles = ordered_json::array();
  for (const BundleDraft& draft : bundling.bundles) {
    ordered_json members = ordered_json::array();
    for (const ArchiveRecord& member : draft.members) members.push_back(TarName(member));
    bundles.push_back({{"bundle", draft.name},
                       {"members", std::move(members)},
                       {"replaces", draft.files},
                       {"bytes", draft.bytes},
                       {"why", draft.why}});
  }
  return {{"bundles", std::move(bundles)},
          {"waiting_members", bundling.waiting_members},
          {"waiting_bytes", bundling.waiting_bytes}};
}

void PrintBundling(const BundlePlan& bundling, const Policy& policy) {
  for (const BundleDraft& draft : bundling.bundles)
    fmt::print("bundle {} members, {}, as {}: {}\n", draft.members.size(), HumanBytes(draft.bytes),
               draft.name, draft.why);
  if (bundling.waiting_members > 0)
    fmt::print("{} members, {}, wait for a bundle of {} (archive bundle does not wait)\n",
               bundling.waiting_members, HumanBytes(bundling.waiting_bytes),
               HumanBytes(policy.bundle.target));
}

void AddArchiveBundle(CLI::App& archive, Verb& verb) {
  const auto [bundle, options] = AddVerb(
      archive, verb, "bundle", "put all small members of a store into few large tar files", RunBundle);
  bundle->add_option("POLICY", options->policy, "the policy, a TOML file")->required();
  bundle->add_flag("--json", options->json, "print facts as JSON");
  bundle->add_flag("--dry-run", options->dry_run,
                   "show which members would go into which bundle and why; write nothing");
  bundle->footer(
      "`cairn archive run --policy` bundles by itself as soon as small members add up to the policy's\n"
      "`bundle` size; this verb does not wait for that. A small tar is removed after its bundle was read\n"
      "back and every member in it verified, so the store needs room for one more bundle. Members on tape\n"
      "are brought back first ([recall] of the policy; without it they stay there); those that no class\n"
      "keeps stay there, since a bundle is pruned as a whole.\n\n" +
      HelpFooter("cairn archive bundle archive.toml --dry-run", "a member is damaged; it is not moved"));
}

}  // namespace cairn
