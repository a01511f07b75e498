// Which bundles are written anew, since much of them is asked for no more.
//
// A bundle goes only as a whole. So the members that stay are put into a new one, proven as any other
// (bundler.h), before the old one goes. A run that is killed on the way leaves both, and SettleBundles takes
// the new one away again, or leaves the old one stepped aside, and CleanStore ends its removal.
#pragma once

#include <vector>

#include "tools/archive/bundle/bundle_plan.h"
#include "tools/archive/policy/prune.h"

namespace cairn {

struct BundleRewrite {
  BundleDraft draft;            // of the members that stay; it replaces the bundle
  uint64_t bundle_bytes = 0;    // of what goes, by its members
  uint64_t unwanted_bytes = 0;  // of those, what is asked for no more
};
// Of the entries that say `rewrite`. Pure.
std::vector<BundleRewrite> PlanRewrites(const std::vector<ArchiveMember>& members,
                                        const std::vector<PruneEntry>& entries);

}  // namespace cairn
