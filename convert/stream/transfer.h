// The cost of writing a checkpoint in another form, as --dry-run prints it, and its result. Reshape, strip
// and export share both.
#pragma once

#include <string>
#include <vector>

#include "ckpt/codec/cast.h"
#include "ckpt/model/copy_program.h"
#include "convert/stream/fingerprint.h"

namespace cairn {

struct TransferCost {
  ProgramSize plan;          // of the tensors that are copied; empty if whole files are
  uint64_t read_bytes = 0;   // of the source's tensors
  uint64_t file_bytes = 0;   // of the result, about
  uint64_t moved_bytes = 0;  // through memory in all, reading back included; progress counts them
  uint64_t files = 0;        // of the result
  uint64_t peak_memory = 0;  // about
};

// A tensor that was written, and how its values changed.
struct TransferredTensor {
  std::string name;  // canonical, of the source
  Role source = Role::kMaster;
  Dtype from = Dtype::kF32;
  Dtype to = Dtype::kF16;
  CastCounts counts;
};

struct TransferResult {
  std::string path;                        // of the new step, or of the directory of files
  bool overflowed = false;                 // finite values became infinite: nothing was kept
  std::vector<TransferredTensor> tensors;  // what a cast can change; empty for a reshape
  std::vector<std::string> notes;          // about the result, for its user
  Fingerprints fingerprints;               // of the source's tensors that were read
  uint64_t bytes_read = 0;                 // of the source, by all ranks
  uint64_t bytes_written = 0;              // of all files
  uint64_t bytes_resumed = 0;              // of tensors that an earlier run had written; by this rank
  uint64_t files = 0;
};

}  // namespace cairn
