// A step on scratch, of whichever system: what its place says about it before it is opened.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "ckpt/io/file_system.h"
#include "convert/foreign/layouts.h"

namespace cairn {

// Sizes and times of files.
struct FileTimes {
  uint64_t bytes = 0;
  int64_t last_written = 0;
  // The files that were written and accessed longest ago are the first that a purge takes.
  int64_t first_written = std::numeric_limits<int64_t>::max(), first_accessed = first_written;

  bool dated() const { return first_written != std::numeric_limits<int64_t>::max(); }  // there are files
  void Add(const FileInfo& file) {
    bytes += file.bytes;
    last_written = std::max(last_written, file.modified_unix_seconds);
    first_written = std::min(first_written, file.modified_unix_seconds);
    first_accessed = std::min(first_accessed, file.accessed_unix_seconds);
  }
};

struct FoundStep {
  std::string path;
  std::optional<int64_t> step = {};  // nullopt: its number is not known
  bool native = true;   // of Cairn; else of another system, or any directory that is taken for a step
  bool sealed = false;  // it has a seal, sound or not
  bool of_run = false;  // of a run that was given as a whole
  const TrainerLayout* layout = nullptr;  // of another system's step; null: unknown
  bool named = false;                     // its name alone says that it is a step of this layout
  FileTimes times = {};                   // for those who read them
};

}  // namespace cairn
