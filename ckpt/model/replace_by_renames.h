// Gives a directory the name of another one, on a file system that cannot exchange two names: NFS, Lustre,
// FUSE and others. FORMAT.md, "Commit".
//
// During one rename nothing has the name, and the old directory waits under another one. For a step that is
// saved again the names are then:
//
//   step-00000010.superseded-NONCE   the old step
//   step-00000010.partial-NONCE      the new one, whole and durable
//
// While both exist and step-00000010 does not, the old step is the step: readers find it under its other name
// (ReadStep), and a clean-up gives it its name back before it removes the new one (BringBack). Whatever a
// kill or a power loss leaves, one of the two directories is whole.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/io/file_system.h"

namespace cairn {

// Durably renames the directory `to` to `aside`, and then `from` to `to`. `from` must be durable but for its
// name. Errors: those of the disk; `to` is the old directory again, or, if that failed as well, `aside` is.
Status ReplaceByRenames(FileSystem& fs, const std::string& from, const std::string& to,
                        const std::string& aside);

// Makes the names of `a` and then of `b` durable.
Status SyncAbove(FileSystem& fs, const std::string& a, const std::string& b);

// If the step of this partial directory waits aside, it gets its name back, durably.
Status BringBack(FileSystem& fs, const std::string& partial_dir);

// The names in a directory at one moment: readdir() may miss an entry that is renamed meanwhile.
Result<std::vector<std::string>> ListAtOnce(FileSystem& fs, const std::string& directory);

// Whether `name`, one of the sorted `names` in a run directory, is a step that waits aside.
bool WaitsAside(const std::vector<std::string>& names, const std::string& name);

// Where the step of a committed directory is, and which one it is.
struct StepPlace {
  std::string directory;  // `step_dir` itself if nothing waits aside, whether it exists or not
  uint64_t inode = 0;
  bool operator==(const StepPlace&) const = default;
};
StepPlace FindStep(FileSystem& fs, const std::string& step_dir);

// Calls `read` with the directory of a step, and again if that fails while another step takes its name.
template <typename Read>
auto ReadStep(FileSystem& fs, const std::string& step_dir, const Read& read) {
  constexpr int kLooks = 10;
  StepPlace place = FindStep(fs, step_dir);
  for (int look = 1;; ++look) {
    auto result = read(place.directory);
    if (result.ok() || look == kLooks) return result;
    if (StepPlace now = FindStep(fs, step_dir); now != place)
      place = std::move(now);
    else
      return result;
  }
}

}  // namespace cairn
