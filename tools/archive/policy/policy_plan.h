// The plan of a policy: what to store now, why, and by when, and whether that is possible. Writes nothing.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "tools/archive/bundle/bundle_plan.h"
#include "tools/archive/policy/policy.h"
#include "tools/archive/policy/purge_clock.h"
#include "tools/archive/policy/store_usage.h"
#include "tools/archive/store/source.h"

namespace cairn {

struct PlanEntry {
  std::string run;      // its name
  std::string id = {};  // its identity; empty if it cannot be read
  int64_t step = 0;
  std::string title = {};  // RUN@STEP, or RUN~ID@STEP (member_title.h)
  FoundStep source;
  bool store_full = false;  // of a tree: as it is
  bool store_weights = false;
  bool keeps_full = false;  // a class asks for all of it
  bool delete_source = false;
  bool trouble = false;  // a class keeps it, but it cannot be read; `why` has the reason
  std::string why = {};
  uint64_t bytes = 0;          // to store, about; before packing
  uint64_t weight_bytes = 0;   // of those, the weights
  uint64_t inodes = 0;         // to store
  StoreUsage full_at_most;     // what the full form takes of a quota
  StoreUsage weights_at_most;  // what the weights take, the files on the way included
  double purge_days = 0;       // until the purge takes the file that was accessed longest ago
  double finish_days = -1;     // until it is proven at the bandwidth, all before it included; -1: unknown
  bool late = false;           // after the purge less the margin

  bool stores() const { return store_full || store_weights; }
};

struct Plan {
  std::vector<PlanEntry> entries;  // what to store, the most urgent first
  uint64_t bytes = 0;
  uint64_t inodes = 0;
  double bandwidth = 0;                // bytes a second; 0: not known
  std::vector<std::string> failures;   // why the policy cannot be met
  std::vector<std::string> notes;      // for people; not failures
  std::vector<std::string> caveats;    // of mounts
  std::vector<std::string> unclaimed;  // stored tars that a class keeps but this policy does not claim yet
  bool ambiguous = false;              // several runs have one name
  BundlePlan bundling;                 // of what is stored already
  double nearest_purge_days = 0;       // of what waits; infinite if nothing does
};

// `measured`: bytes a second of the last run, 0 if there was none. A path of the policy that does not exist
// or cannot be read becomes one of the plan's failures.
Result<Plan> MakePlan(FileSystem& fs, const Policy& policy, double measured, int64_t now_unix_seconds);

// Files of the store that no bundle takes now: those with a member that no class keeps, since a bundle is
// removed only as a whole, and those on tape unless `from_tape` and the policy has a recall command.
Result<std::set<std::string>> FilesNotToBundle(FileSystem& fs, const Policy& policy, bool from_tape);

// The bundles that are due now. `all`: also of what still waits and of what is on tape.
Result<BundlePlan> PlanBundlesBy(FileSystem& fs, const Policy& policy, bool all);

}  // namespace cairn
