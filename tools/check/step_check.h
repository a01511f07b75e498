// All checks of one step: is it whole, are its bytes those that were saved, do its values make sense.
#pragma once

#include <optional>
#include <string>

#include "ckpt/step/verify.h"
#include "convert/foreign/expert_census.h"
#include "convert/stream/block_stream.h"
#include "tools/check/sample_check.h"
#include "tools/check/verify_standing.h"

namespace cairn {

struct CheckOptions {
  bool structure = true;
  bool hash = true;
  bool values = false;
  std::optional<SampleSize> sample;  // of the tensors' bytes, instead of all of them, for `hash`
  uint64_t max_memory = kDefaultMaxMemory;
  int jobs = 2;  // threads that read; `fs` is used by as many
};

// All problems, and what each kind of check found separately.
struct StepReport : VerifyReport {
  std::vector<Check> checks;  // without time, files and the bytes of the whole
  std::vector<Mixture> mixtures;
  std::vector<std::string> notes;  // that do not fail a check
  std::vector<Problem> experts;    // ValueReport::experts; in no entry of `checks`
};

// Problems of the step in `directory`, a step that does not open included: then every check that was asked
// for has failed. Checking every byte checks the structure too. `progress` gets the bytes done.
StepReport CheckStep(FileSystem& fs, const std::string& directory, const CheckOptions& options,
                     const std::function<void(uint64_t)>& progress = {});

}  // namespace cairn
