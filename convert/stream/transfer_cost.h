// The cost of writing a checkpoint in another form, known before anything is written: what --dry-run prints.
#pragma once

#include "ckpt/model/copy_program.h"

namespace cairn {

struct TransferCost {
  ProgramSize plan;          // of the tensors that are copied; empty if whole files are
  uint64_t read_bytes = 0;   // of the source's tensors
  uint64_t file_bytes = 0;   // of the result, about
  uint64_t moved_bytes = 0;  // through memory in all, reading back included; progress counts them
  uint64_t files = 0;        // of the result
  uint64_t peak_memory = 0;  // about
};

}  // namespace cairn
