// `cairn doctor`: what this host and a directory offer to saves, and what they lack.
//
// The checks are a list of functions that return a row each (checks.h). Whatever they write lies in a
// directory with Cairn's mark (dir_mark.h), which is removed at the end, also by a signal. Under mpirun or
// srun every rank looks for itself; rank 0 gets what all have found.
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/run/rank_team.h"
#include "tools/doctor/finding.h"

namespace cairn {

struct HostReport {
  std::string host;
  std::vector<int> ranks;  // that found the same there
  std::vector<Finding> findings;

  bool LosesData() const;
};

// What this process finds. If nothing can be written there, the row "write" says why, and all rows that need
// it are missing. Errors: NotFound or InvalidArgument if `directory` is not a directory.
Result<HostReport> Examine(FileSystem& fs, const std::string& directory, const RankTeam& team);

// The reports of all ranks: that of rank 0 first, then each that differs from it in a row, with those rows.
// Other ranks than 0 hand theirs over and get nothing. Errors: Aborted naming the ranks that did not come, or
// the first one that failed.
Result<std::vector<HostReport>> Gather(FileSystem& fs, const std::string& directory, const RankTeam& team,
                                       HostReport own);

}  // namespace cairn
