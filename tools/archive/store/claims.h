// Claims: who asked for a member of a store, as its sidecar lists them.
//
// Several policies and people use one store, which has each member once. A claim is the label of one of
// them: a policy's `tag`, or "policy:" and the path of its file if it has no tag, or "by hand". A policy that
// no longer keeps a member drops its own claim; a member is removed only if it has no other claim. Members of
// older versions, whose claims are not known, count as claimed by "unknown", which is not a policy.
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
// "weekly, hand", for messages after "claimed by".
std::string ClaimsText(const std::vector<std::string>& claims);

// Adds to `record` the claims of a copy that it replaces, such as a damaged one.
void InheritClaims(const Store& store, ArchiveRecord& record);

// Changes the sidecars of members, by the names of their tars, and of their bundles. No other process may
// write sidecars of the store meanwhile. Unknown names are ignored.
Status AddClaim(const Store& store, const std::vector<std::string>& tars, const std::string& claim);
// The last claim of a member is never dropped: whoever holds it removes the member instead.
Status DropClaims(const Store& store, const std::vector<std::string>& tars,
                  const std::vector<std::string>& claims);
// Every claim `from` becomes `to`. Returns the number of members.
Result<size_t> AdoptClaims(const Store& store, const std::vector<std::string>& from, const std::string& to);

}  // namespace cairn
