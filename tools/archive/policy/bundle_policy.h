// Which bundles a policy asks for. Writes nothing.
#pragma once

#include <set>
#include <string>

#include "ckpt/io/file_system.h"
#include "tools/archive/bundle/bundle_plan.h"
#include "tools/archive/policy/policy.h"

namespace cairn {

BundleSizes BundleSizesOf(const Policy& policy);

// Files of the store that no bundle takes now: of members that no class asks for, since a bundle goes only as
// a whole, and those on tape unless `from_tape` and the policy says how to recall them.
Result<std::set<std::string>> FilesNotToBundle(FileSystem& fs, const Policy& policy, bool from_tape);

// The bundles that are due, of what the store holds now. `all`: of what waits and of what is on tape too.
Result<BundlePlan> PlanBundlesBy(FileSystem& fs, const Policy& policy, bool all);

}  // namespace cairn
