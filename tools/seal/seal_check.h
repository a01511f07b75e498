// Checks that a sealed directory has not changed since it was sealed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ckpt/step/verify.h"
#include "tools/seal/seal_record.h"

namespace cairn {

enum class SealDepth {
  kLook,     // names and sizes; a file whose time differs is noted
  kTouched,  // also the bytes of files whose time differs
  kAll,      // the bytes of all files
};

struct SealReport : VerifyReport {
  // Paths.
  std::vector<std::string> added;  // not in the seal
  std::vector<std::string>
      touched;  // with a different time than the seal's; if they were read, their bytes decide
};

// A file that is missing, that differs in size or bytes, or that was added is a problem; added files are in
// `added` too. An unreadable file is a problem, not an error. `progress` gets the bytes done.
SealReport CheckSeal(FileSystem& fs, const std::string& directory, const Seal& seal, SealDepth depth,
                     int jobs = 2, const std::function<void(uint64_t)>& progress = {});

// The bytes that CheckSeal will read.
uint64_t BytesToCheck(FileSystem& fs, const std::string& directory, const Seal& seal, SealDepth depth);

}  // namespace cairn
