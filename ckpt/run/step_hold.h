// Keeps a step from being retired while a virtual step elsewhere uses its shards. FORMAT.md, "Virtual steps".
//
// A hold ends when Cairn deletes the virtual step, or when a person removes the hold's file. A missing
// directory at the virtual step's path proves nothing: it may have been renamed, or its file system may not
// be mounted here. A renamed virtual step renews its hold when it is opened.
#pragma once

#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/model/manifest.h"

namespace cairn {

struct Hold {
  std::string file;                   // RUN/held/step-N.NONCE; a person releases the step by removing it
  std::string holder;                 // absolute path of the virtual step when it was last opened
  int64_t modified_unix_seconds = 0;  // 0: not known
  bool there = false;                 // the virtual step is at its path

  // "/v/step-00000002 uses its shards since 2026-11-27, and does not exist now; to let it go: rm FILE"
  std::string Text() const;
};

// A hold older than this does not count if its virtual step was never made. Both this host's clock and the
// file system's must agree on its age.
inline constexpr int64_t kAnnouncedSeconds = 3600;

// The holds of RUN/step-N.
Result<std::vector<Hold>> HoldsOf(FileSystem& fs, const std::string& run_dir, int64_t step);

// Writes a hold, durably. `step_dir` has the shards; `holder` is the absolute path of the virtual step, and
// `directory` where it lies until it is published. Writes nothing if `step_dir` does not have the name of a
// committed step, because nothing retires it then.
Status AnnounceHold(FileSystem& fs, const std::string& step_dir, const std::string& holder,
                    const std::string& directory);
// Renews the hold of the step in `directory` if it is a virtual one that lies elsewhere than its hold says.
// Best effort: the run that has the shards may be read-only.
void RenewHold(FileSystem& fs, const std::string& directory, const Manifest& manifest);
// Ends the hold of a virtual step that is being deleted, best effort: `holder` is its path, and `directory`
// where it lies now.
void EndHold(FileSystem& fs, const std::string& holder, const std::string& directory,
             const Manifest& manifest);

}  // namespace cairn
