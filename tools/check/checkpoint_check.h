// The checks of `cairn verify`, for whatever its argument means: steps of Cairn, other systems' checkpoints
// with or without a seal, members of a store.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/step/verify.h"
#include "convert/foreign/expert_census.h"
#include "convert/formats/systems.h"
#include "tools/check/sample_check.h"

namespace cairn {

struct CheckpointChecks {
  OpenOptions open;
  // Without a choice: structure and bytes; of another system's checkpoint without a seal values, too.
  bool structure = false, hash = false, values = false;
  std::optional<SampleSize> sample;  // of the bytes; steps of Cairn only
  bool all = false;                  // every step of a run, not only the newest one
  int jobs = 2;                      // threads that read
  bool record = true;                // the result, for `ls` and `archive` (verify_record.h)
  bool show_progress = false;        // on stderr
};

// The result for one checkpoint.
struct CheckpointReport : VerifyReport {
  std::string checkpoint;
  std::string what = {};                   // was checked
  std::string unhealthy = {};              // why nobody should resume from it, whole or not
  std::vector<std::string> unlisted = {};  // files in a step that its manifest does not list
  std::vector<Mixture> mixtures = {};      // layers that have experts
  std::vector<std::string> notes = {};     // that do not fail the check
  // Checks that were not possible when it was sealed: bytes show only that nothing has changed since.
  std::vector<std::string> unchecked = {};

  bool passed() const { return good() && unhealthy.empty() && unchecked.empty(); }
};

// Calls `checked` after each checkpoint that `argument` means. A checkpoint with problems does not end the
// checks of those after it. Errors: NotFound if there is nothing to check; NotSupported for a check that is
// not possible (a sample of another system's checkpoint, bytes of files without checksums); IoError for a
// member on tape.
Status CheckCheckpoints(FileSystem& fs, const std::string& argument, const CheckpointChecks& checks,
                        const std::function<void(const CheckpointReport&)>& checked);

}  // namespace cairn
