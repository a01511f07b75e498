// What the last check of a step found, beside the steps: RUN/verified/step-00000100.json.
//
// For whoever lists or archives steps and should not have to read them first. A record counts for the step
// whose manifest it names by digest; another step under the same name has none. Nothing depends on it: it
// may be missing, or be deleted at any time.
#pragma once

#include <optional>
#include <string>

#include "ckpt/file_system.h"
#include "ckpt/manifest.h"

namespace cairn {

struct VerifyRecord {
  int64_t unix_seconds = 0;
  std::string checked;  // "structure, every byte"
  uint64_t bytes = 0;   // that were read
  uint64_t problems = 0;
  bool operator==(const VerifyRecord&) const = default;
};

// Replaces the step's record. Errors: those of the disk.
Status WriteVerifyRecord(FileSystem& fs, const std::string& step_directory, const Manifest& manifest,
                         const VerifyRecord& record);

// Nothing where there is none, or none that can be read, or another step's.
std::optional<VerifyRecord> ReadVerifyRecord(FileSystem& fs, const std::string& step_directory,
                                             const Manifest& manifest);

}  // namespace cairn
