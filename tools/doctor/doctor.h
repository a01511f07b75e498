// `cairn doctor`: what this host and a directory offer to saves, and what they lack.
//
// The checks are a list of functions that return a row each (checks.h). All that they write is in a directory
// with Cairn's mark (dir_mark.h), which is removed at the end, also by a signal. Under mpirun or srun every
// rank checks for itself; rank 0 collects all reports.
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/run/rank_team.h"
#include "tools/doctor/finding.h"

namespace cairn {

struct HostReport {
  std::string host;
  std::vector<int> ranks;  // that found the same
  std::vector<Finding> findings;

  bool LosesData() const;
};

// What this process finds. If nothing can be written, the row "write" says why, and all rows that need
// it are missing. Errors: NotFound or InvalidArgument if `directory` is not a directory.
Result<HostReport> Examine(FileSystem& fs, const std::string& directory, const RankTeam& team);

// The reports of all ranks: that of rank 0 first, then each that differs from it in a row, with those rows.
// Ranks other than 0 write theirs and get nothing. Errors: Aborted naming the ranks that did not arrive, or
// the first one that failed.
Result<std::vector<HostReport>> Gather(FileSystem& fs, const std::string& directory, const RankTeam& team,
                                       HostReport own);

}  // namespace cairn
