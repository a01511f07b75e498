// Where a step is while another process commits one in its place (replace_by_renames.h), and reading it
// there.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/io/file_system.h"
#include "ckpt/model/manifest.h"

namespace cairn {

// The names in a directory at one moment: readdir() may miss an entry that is renamed meanwhile.
Result<std::vector<std::string>> ListAtOnce(FileSystem& fs, const std::string& directory);

// "step-00000010" and "NONCE" of "step-00000010.MARK-NONCE"; empty for other names.
std::pair<std::string, std::string> MarkedParts(std::string_view name, std::string_view mark);

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

// Reads the manifest of the step in `step_dir`; `digest`, if given, becomes the digest of its text.
// Errors name the file: NotFound, IoError, and those of DecodeManifest.
Result<Manifest> ReadManifest(FileSystem& fs, const std::string& step_dir, Digest* digest = nullptr);

}  // namespace cairn
