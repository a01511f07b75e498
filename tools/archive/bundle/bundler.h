// Makes bundles (bundle.h) of a store's members.
//
// Order of what becomes durable: the bundle under a name that does not count (written, synced, closed); then
// it is read back past the page cache, every member of it against its own digests; then its parity, its
// sidecar, its name; then what it replaces is removed. A run that is killed anywhere leaves each member
// proven in at least one place, and the next one ends its work. Requires the store's lock.
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
  bool all = false;   // what waits need not reach the target
  std::function<bool(const std::string& file)> pass_over;
  std::function<ByteProgress(const BundleDraft&)> progress;  // of bytes written and read back
  std::function<void(const BundleDraft&, const Bundle&)> made;
};

// Makes all bundles that are due. Returns what went wrong, one line each: damaged members, which stay where
// they are. Errors: those of the disk, of a store that does not keep what is written.
Result<std::vector<std::string>> MakeBundles(const Store& store, const BundleJob& job);

}  // namespace cairn
