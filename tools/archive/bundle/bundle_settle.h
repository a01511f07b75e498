// What is left to do with bundles (bundle.h) after a killed run, a lost sidecar, a repair. All of these
// require the store's lock.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tools/archive/store/bundle.h"
#include "tools/archive/store/verify.h"

namespace cairn {

// Ends what killed runs began: of members that are in a bundle and elsewhere too, the other copy goes once
// the one in the bundle is proven anew, or the bundle gives the member up where it is not.
struct SettledBundles {
  std::vector<std::string> problems;  // one line each
  std::set<std::string> files;        // that are gone, or that nobody should touch: both copies are damaged
};
Result<SettledBundles> SettleBundles(const Store& store);

// Makes the sidecar of a bundle that lost it, from the index in its tar. Members that are not whole count as
// damaged until a later proof (their records are of no verification); returns a line of each. Errors: Corrupt
// where none is whole.
Result<std::vector<std::string>> RebuildBundle(const Store& store, const std::string& name);

// The bundle forgets a member that is damaged in it and stored elsewhere; without any member it goes.
Status DropFromBundle(const Store& store, const std::string& name, const std::string& tar);

}  // namespace cairn
