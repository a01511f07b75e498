// Who asked for a member of a store: the claims in its sidecar.
//
// Several policies and people put their copies into one store, and each member lies there once. A claim is
// the label of somebody who asked for it: a policy's `tag`, "policy:" and the path of its file if it has
// none, or "by hand". A policy that no longer asks for a member drops its own claim; only a member without
// any other is removed. A member that nobody is known to have asked for, as stores of older versions have
// them, counts as claimed by "unknown", which no policy is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/archive/store/store.h"

namespace cairn {

inline constexpr std::string_view kByHand = "by hand";  // archive run SRC --store DIR
inline constexpr std::string_view kUnknownClaim = "unknown";
inline constexpr std::string_view kPolicyClaim = "policy:";  // and the path of a policy without a tag

// Never empty.
std::vector<std::string> ClaimsOf(const ArchiveRecord& record);
// "weekly, hand": what "claimed by" goes before.
std::string ClaimsText(const std::vector<std::string>& claims);

// Adds to the claims of what is to be stored those of a copy that is there already, a damaged one, say, which
// it replaces.
void InheritClaims(const Store& store, ArchiveRecord& record);

// In the sidecars of members, by the names of their tars, and of the bundles that they lie in. Call while no
// other process writes sidecars into the store. A name that is not there is passed over.
Status AddClaim(const Store& store, const std::vector<std::string>& tars, const std::string& claim);
// The last claim of a member is never dropped: that member is removed instead, by whoever holds it.
Status DropClaims(const Store& store, const std::vector<std::string>& tars,
                  const std::vector<std::string>& claims);
// Every claim `from` becomes `to`. Returns the number of members.
Result<size_t> AdoptClaims(const Store& store, const std::vector<std::string>& from, const std::string& to);

}  // namespace cairn
