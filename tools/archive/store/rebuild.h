// Makes lost sidecars again, from the tars themselves. Requires the store's lock, except RebuildSidecars,
// which takes it.
#pragma once

#include <string>
#include <vector>

#include "tools/archive/store/store_member.h"

namespace cairn {

// Makes the sidecar of a tar that lost it, by reading all of the tar. Errors: Corrupt.
Result<ProvenCopy> RebuildRecord(const MemberRef& member, const ByteProgress& progress);

// Makes the sidecar of a bundle that lost it, from the index in its tar. Members that are not whole count as
// damaged until a later proof (their records say no verification); returns one line for each. Errors: Corrupt
// if none is whole.
Result<std::vector<std::string>> RebuildBundle(const Store& store, const std::string& name);

// Makes every sidecar that is missing, unreadable or unproven. Returns one line for each member or tar that
// could not be rebuilt.
Result<std::vector<std::string>> RebuildSidecars(const Store& store);

}  // namespace cairn
