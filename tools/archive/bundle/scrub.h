// Chooses members to check on a budget, those checked longest ago first, and repairs damaged ones.
#pragma once

#include <string>
#include <vector>

#include "tools/archive/store/bundle.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/verify.h"

namespace cairn {

// The members to check: the one checked longest ago first, until the budget is used up; at least one. The
// budget is the lesser of `fraction` of the store's bytes and `bytes`; 0: no limit. Pure.
std::vector<CheckedMember> ChooseToScrub(std::vector<CheckedMember> members, double fraction, uint64_t bytes);

// Repairs a damaged member: from its parity, or else from its source if that is unchanged. The replacement is
// proven first. Requires the lock. Returns how it was repaired. Errors: Corrupt if nothing helps.
Result<std::string> RepairMember(const Store& store, const ArchiveMember& member);

// Removes a member from the bundle's sidecar: it is damaged there and stored elsewhere. A bundle without
// members is removed. Requires the lock.
Status DropFromBundle(const Store& store, const std::string& name, const std::string& tar);

}  // namespace cairn
