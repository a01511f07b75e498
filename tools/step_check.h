// Everything that can be asked of one step: is it whole, are its bytes those that were saved, do its values
// make sense.
#pragma once

#include <optional>
#include <string>

#include "ckpt/verify.h"
#include "convert/block_stream.h"
#include "tools/sample_check.h"

namespace cairn {

struct CheckOptions {
  bool structure = true;
  bool hash = true;
  bool values = false;
  std::optional<SampleSize> sample;  // of the tensors' bytes, instead of all of them, for `hash`
  uint64_t max_memory = kDefaultMaxMemory;
  int jobs = 2;  // threads that read; `fs` is used by as many
};

// Problems of the step in `directory`, a step that does not open included. `progress` is told the bytes done.
VerifyReport CheckStep(FileSystem& fs, const std::string& directory, const CheckOptions& options,
                       const std::function<void(uint64_t)>& progress = {});

}  // namespace cairn
