// How much of its quota a store takes: everything in its directory, of any origin.
#pragma once

#include <cstdint>

#include "tools/archive/policy/policy.h"
#include "tools/archive/store/store.h"

namespace cairn {

struct StoreUsage {
  uint64_t bytes = 0;
  uint64_t files = 0;  // directories too
};

// Links are counted and not followed. Errors: those of the disk.
Result<StoreUsage> UsageOf(const Store& store);

// Whether there is room for `more`. Errors: NoSpace with the figures.
Status CheckQuota(const Policy& policy, const StoreUsage& there, const StoreUsage& more);

}  // namespace cairn
