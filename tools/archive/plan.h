// What a policy asks for now: what to store, why, and by when; and whether that can be met. Writes nothing.
#pragma once

#include <string>
#include <vector>

#include "ckpt/file_system.h"
#include "tools/archive/bundle_plan.h"
#include "tools/archive/policy.h"
#include "tools/archive/purge_clock.h"
#include "tools/archive/source.h"

namespace cairn {

struct PlanEntry {
  std::string run;
  int64_t step = 0;
  ArchiveSource source;
  bool store_full = false;  // of a tree: as it is
  bool store_weights = false;
  bool delete_source = false;
  bool trouble = false;  // what is asked for cannot be had; `why` says so
  std::string why;
  uint64_t bytes = 0;         // to store, about; before packing
  uint64_t weight_bytes = 0;  // of those, the weights
  uint64_t inodes = 0;        // to store
  double purge_days = 0;      // until the purge takes the file that was accessed longest ago
  double finish_days = -1;    // until it is proven at the bandwidth, all before it included; -1: unknown
  bool late = false;          // after the purge less the margin

  bool stores() const { return store_full || store_weights; }
};

struct Plan {
  std::vector<PlanEntry> entries;  // what is to be stored first, the most urgent first
  uint64_t bytes = 0;
  uint64_t inodes = 0;
  double bandwidth = 0;               // bytes a second that was reckoned with; 0: not known
  std::vector<std::string> failures;  // why the policy cannot be met
  std::vector<std::string> notes;     // caveats of mounts
  BundlePlan bundling;                // of what is stored already
  double nearest_purge_days = 0;      // of what is not stored yet; infinite where all is
};

// `measured`: bytes a second of the last run, 0 where there was none. Errors: NotFound for a run that is
// named without a glob and is not there.
Result<Plan> MakePlan(FileSystem& fs, const Policy& policy, double measured, int64_t now_unix_seconds);

// Which members of the store no class asks for; restic's forget.
struct PruneEntry {
  std::string tar;
  std::string file;  // in the store: the tar itself, or the bundle that it lies in, which goes as a whole
  std::string run;
  int64_t step = 0;
  uint64_t bytes = 0;
  bool proven = false;
  bool remove = false;
  bool rewrite =
      false;  // with `remove`: others in its bundle stay, so that is written anew (bundle_rewrite.h)
  std::string why;
};
Result<std::vector<PruneEntry>> PlanPrune(FileSystem& fs, const Policy& policy);

// What `entries` say is to go, each file once; not from bundles that are to be written anew.
Status RemovePruned(FileSystem& fs, const std::string& store, const std::vector<PruneEntry>& entries);

}  // namespace cairn
