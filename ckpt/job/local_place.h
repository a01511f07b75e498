// The directory of a rank's local steps, and the ranks that share the directory or a parity group with it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/job/job_ranks.h"
#include "ckpt/job/local_owner.h"
#include "ckpt/step/parity_file.h"

namespace cairn {

struct LocalOptions {
  std::string directory;    // of all runs on this node; "{rank}" is replaced by the rank
  std::string redundancy;   // as ParseRedundancy takes it
  int64_t keep_last = 2;    // healthy steps
  double wait_seconds = 0;  // for another process to leave the directory: one of the job before
};

struct LocalPlace {
  std::string run_dir;       // DIR/RUN_ID of this rank; it exists
  std::vector<int> sharers;  // ranks that see this directory, ascending, this one among them
  bool leader = false;       // the first of them: works for the whole directory
  std::vector<int> group;  // ranks of its parity group, ascending, this one among them; empty: no redundancy
  int parity = 0;
  std::string covers;  // "any 1 of 4 nodes": the losses that the parity can repair
  int64_t keep_last = 2;
  std::shared_ptr<const LocalClaim> claim;  // of the leader: no other training uses the directory
};

// Collective; removes leftovers of killed saves. `run_dir`, `run`: the run directory and its identity;
// `nonce`: that of the session, 8 hex digits; `say`: what a user should know. Errors: those of any rank's
// directory, the same on all ranks; IoError if it belongs to another run directory (local_owner.h) or another
// training uses it; InvalidArgument if there are too few ranks for the redundancy, or the directory lies in
// the run directory.
Result<LocalPlace> OpenLocalPlace(FileSystem& fs, const LocalOptions& options, const std::string& run_dir,
                                  const std::string& run, const std::string& nonce, JobRanks& ranks,
                                  const std::function<void(const std::string& line)>& say);

// The name of memory of a save that can become a file of a step: hidden, never used twice by a process.
std::string NewMemoryName();
// True for such a name. Pure.
bool IsMemoryName(std::string_view name);

// True for the name of a mark that a rank left to find the ranks that share its directory. Pure.
bool IsRankMark(std::string_view name);

// Cuts the ranks evenly into groups of at most `redundancy.group` (more if a group would otherwise not exceed
// its parity). Ranks of the same node are spread over the groups: a lost node costs each group as few members
// as possible. Errors: InvalidArgument if there are too few ranks. Pure.
Result<std::vector<std::vector<int>>> CutIntoGroups(const std::vector<std::string>& node_of_rank,
                                                    const Redundancy& redundancy);

// How many nodes may be lost, any of them, before a group loses more than `parity` of its ranks. Pure.
int LosableNodes(const std::vector<std::vector<int>>& groups, const std::vector<std::string>& node_of_rank,
                 int parity);

}  // namespace cairn
