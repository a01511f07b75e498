// The members that a policy removes from a store, like restic's forget.
//
// A member is removed only if no other policy or person claims it (claims.h), its run, by identity, is one of
// the policy's on scratch, and no class keeps it. A member that another policy or a person claims, too,
// stays; the policy then drops its own claim.
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "tools/archive/policy/policy.h"

namespace cairn {

struct PruneEntry {
  std::string tar;
  std::string file;  // in the store: the tar itself, or its bundle, which is removed as a whole
  std::string run;
  int64_t step = 0;
  uint64_t bytes = 0;
  bool remove = false;
  std::string why;
  std::string title;        // RUN@STEP, or RUN~ID@STEP (member_title.h)
  std::string source;       // where it came from
  bool drop_claim = false;  // it stays, because others claim it
};

// `adopted`: claims that count as the policy's own.
Result<std::vector<PruneEntry>> PlanPrune(FileSystem& fs, const Policy& policy,
                                          const std::vector<std::string>& adopted = {});

// Carries that plan out: removes each file once, drops claims, and returns the plan. Requires the store's
// lock.
Result<std::vector<PruneEntry>> Prune(FileSystem& fs, const Policy& policy,
                                      const std::vector<std::string>& adopted = {});

// Lines for the user about members whose claim cannot be dropped, because the policy's file no longer exists
// or an older version noted no claims: their number, and how to take them over.
Result<std::vector<std::string>> OrphanedClaims(FileSystem& fs, const Policy& policy);

}  // namespace cairn
