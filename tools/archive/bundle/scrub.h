// Reads members back on a budget, those first that were looked at longest ago, and repairs what is damaged.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/archive/store/bundle.h"
#include "tools/archive/store/ledger.h"
#include "tools/archive/store/verify.h"

namespace cairn {

// The members to look at: oldest look first, until the budget is used up; at least one. `fraction` of the
// store's bytes and `bytes`, whichever is less; 0: no limit. Pure.
std::vector<LedgerMember> ChooseToScrub(std::vector<LedgerMember> members, double fraction, uint64_t bytes);

// Makes a damaged member whole: from its parity, else from its source if that is still the same step. The
// replacement is proven first. Requires the lock. Says how. Errors: Corrupt if nothing helps.
Result<std::string> RepairMember(const Store& store, const ArchiveMember& member);

// Takes a member out of the bundle's sidecar: it is damaged there and stored elsewhere. A bundle without any
// member goes. Requires the lock.
Status DropFromBundle(const Store& store, const std::string& name, const std::string& tar);

}  // namespace cairn
