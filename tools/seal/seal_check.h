// Whether a sealed directory is still what was sealed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/step/verify.h"
#include "tools/seal/seal_record.h"

namespace cairn {

enum class SealDepth {
  kLook,     // names and sizes; a file of another time is noted
  kTouched,  // also the bytes of files of another time
  kAll,      // the bytes of all files
};

struct SealReport : VerifyReport {
  // Paths.
  std::vector<std::string> added;  // that were not sealed
  std::vector<std::string>
      touched;  // of another time than was sealed; where they were read, their bytes count
};

// A file that is missing, of another size, or of other bytes is a problem, and so is one that was added
// (`added` has them, too). An unreadable one is a problem, not an error. `progress` gets the bytes done.
SealReport CheckSeal(FileSystem& fs, const std::string& directory, const Seal& seal, SealDepth depth,
                     int jobs = 2, const std::function<void(uint64_t)>& progress = {});

// What CheckSeal will read.
uint64_t BytesToCheck(FileSystem& fs, const std::string& directory, const Seal& seal, SealDepth depth);

}  // namespace cairn
