// Makes bundles (bundle.h) of a store's members.
//
// Order of durability: the bundle under a temporary name (written, synced, closed); then it is read back past
// the page cache, every member against its own digests; then its parity, its sidecar, its final name; then
// the tars that it replaces are removed. A run that is killed anywhere leaves each member proven in at least
// one place, and the next run finishes its work. Requires the store's lock.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/archive/bundle/bundle_plan.h"
#include "tools/archive/store/bundle.h"
#include "tools/archive/store/verify.h"

namespace cairn {

struct BundleJob {
  BundleSizes sizes;
  double parity = 0;  // fraction; 0: none
  bool all = false;   // bundles need not reach the target
  std::function<bool(const std::string& file)> pass_over;
  std::function<ByteProgress(const BundleDraft&)> progress;  // of bytes written and read back
  std::function<void(const BundleDraft&, const Bundle&)> made;
};

// Makes all bundles that are due. Returns one line for each damaged member, which stays where it is. Errors:
// those of the disk, or of a store that does not keep what is written.
Result<std::vector<std::string>> MakeBundles(const Store& store, const BundleJob& job);

}  // namespace cairn
