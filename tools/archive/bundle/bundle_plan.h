// Plans which members of a store go into which bundle (bundle.h), and why. Pure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/archive/store/store.h"

namespace cairn {

struct BundleSizes {
  uint64_t least = 0;   // below it, full copies and weights share a bundle
  uint64_t target = 0;  // members become a bundle as soon as they add up to this; 0: no bundles
  uint64_t most = 0;    // of any tar of a store; 0: no limit
};

struct BundleDraft {
  std::string name;
  std::vector<ArchiveRecord> members;  // where they are now, in the order of the bundle
  std::vector<std::string> files;      // the tars that it replaces
  uint64_t bytes = 0;
  std::string why;
};

struct BundlePlan {
  std::vector<BundleDraft> bundles;
  uint64_t waiting_members = 0;  // proven, small enough, and in no bundle yet
  uint64_t waiting_bytes = 0;
};

// Bundles only proven members, by run, form and step, so that neighbours are together on tape. Members of at
// least the target size, and those in pieces, stay as they are. `all`: a bundle need not reach the target,
// because no more members will come. `pass_over`: true for a file that must not be used now.
BundlePlan PlanBundles(const std::vector<ArchiveMember>& members, const BundleSizes& sizes, bool all,
                       const std::function<bool(const std::string& file)>& pass_over);

}  // namespace cairn
