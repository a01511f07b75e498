#include "tools/archive/policy/bundle_policy.h"

#include "ckpt/model/layout.h"
#include "tools/archive/policy/prune.h"
#include "tools/archive/tar/recall.h"

namespace cairn {

BundleSizes BundleSizesOf(const Policy& policy) {
  return {policy.bundle_min, policy.bundle, policy.bundle_max};
}

Result<std::set<std::string>> FilesNotToBundle(FileSystem& fs, const Policy& policy, bool from_tape) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<PruneEntry> entries, PlanPrune(fs, policy));
  std::set<std::string> files;
  const Store store(fs, policy.store);
  const bool ask = from_tape && !policy.recall.empty();
  for (const PruneEntry& entry : entries)
    if (entry.remove || (!ask && IsStub(store.Path(entry.file)))) files.insert(entry.file);
  return files;
}

Result<BundlePlan> PlanBundlesBy(FileSystem& fs, const Policy& policy, bool all) {
  CAIRN_ASSIGN_OR_RETURN(const std::set<std::string> left_out, FilesNotToBundle(fs, policy, all));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<ArchiveMember> members, ListStore({fs, policy.store}));
  return PlanBundles(members, BundleSizesOf(policy), all,
                     [&](const std::string& file) { return left_out.contains(file); });
}

}  // namespace cairn
