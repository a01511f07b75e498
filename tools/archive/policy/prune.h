// Which members of a store a policy takes out of it; restic's forget.
//
// A member goes only if this policy alone claims it (claims.h), its run is one of the policy's on scratch,
// by its identity, and no class asks for it there. What another policy, or a person, asked for stays; the
// policy drops its own claim on it.
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "tools/archive/policy/policy.h"

namespace cairn {

struct PruneEntry {
  std::string tar;
  std::string file;  // in the store: the tar itself, or the bundle that it lies in, which goes as a whole
  std::string run;
  int64_t step = 0;
  uint64_t bytes = 0;
  bool remove = false;
  std::string why;
  std::string title;        // RUN@STEP, or RUN~ID@STEP (member_title.h)
  std::string source;       // where it came from
  bool drop_claim = false;  // it stays for others
};

// `adopted`: claims that count as the policy's own.
Result<std::vector<PruneEntry>> PlanPrune(FileSystem& fs, const Policy& policy,
                                          const std::vector<std::string>& adopted = {});

// Carries that plan out: removes each file once, drops claims, and returns the plan. Requires the store's
// lock.
Result<std::vector<PruneEntry>> Prune(FileSystem& fs, const Policy& policy,
                                      const std::vector<std::string>& adopted = {});

// Lines for a person: how many members are kept for a claim that no policy at hand can drop, being of a
// policy's file that is gone or of a version that noted no claims, and how to take them over.
Result<std::vector<std::string>> OrphanedClaims(FileSystem& fs, const Policy& policy);

}  // namespace cairn
