// Makes bundles (bundle.h) of a store's members.
//
// Order of what becomes durable: the bundle under a name that does not count (written, synced, closed); then
// it is read back past the page cache, every member of it against its own digests; then its parity, its
// sidecar, its name; then what it replaces is removed. A run that is killed anywhere leaves each member
// proven in at least one place, and SettleBundles ends its work. All of these require the store's lock.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/archive/bundle.h"
#include "tools/archive/bundle_plan.h"
#include "tools/archive/verify.h"

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
Result<std::vector<std::string>> MakeBundles(FileSystem& fs, const std::string& store, const BundleJob& job);

// Ends what killed runs began: of members that are in a bundle and elsewhere too, the other copy goes once
// the one in the bundle is proven anew, or the bundle gives the member up where it is not. Returns what went
// wrong, one line each.
Result<std::vector<std::string>> SettleBundles(FileSystem& fs, const std::string& store);

// Makes the sidecar of a bundle that lost it, from the index in its tar. Members that are not whole count as
// damaged until a later proof (their records are of no verification); `problems` has a line of each. Errors:
// Corrupt where none is whole.
struct RebuiltBundle {
  Bundle bundle;
  std::vector<std::string> problems;
};
Result<RebuiltBundle> RebuildBundle(FileSystem& fs, const std::string& store, const std::string& name);

// The bundle forgets a member that is damaged in it and stored elsewhere; without any member it goes.
Status DropFromBundle(FileSystem& fs, const std::string& store, const std::string& name,
                      const std::string& tar);

}  // namespace cairn
