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
  std::vector<std::string> added;    // paths that are not in the seal
  std::vector<std::string> touched;  // paths whose time differs from the seal's
};

// A file that is missing, that differs in size or bytes, or that was added is a problem; added files are in
// `added` too. An unreadable file is a problem, not an error. `progress` gets the bytes done and the bytes to
// read.
SealReport CheckSeal(FileSystem& fs, const std::string& directory, const Seal& seal, SealDepth depth,
                     int jobs = 2, const std::function<void(uint64_t done, uint64_t bytes)>& progress = {});

}  // namespace cairn
