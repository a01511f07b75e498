// The proof before a step is published: what lies on the disk is what was meant to be written.
#pragma once

#include <functional>

#include "convert/stream/fingerprint.h"

namespace cairn {

// Reads `written` back, verified, and compares its sums with those of the blocks that were appended.
// `advance` is told the bytes of each block. Errors: Corrupt naming the tensor; those of the disk.
Status ProveStep(CheckpointSource& written, const StepFingerprint& expected, uint64_t block_bytes,
                 const std::function<void(uint64_t)>& advance);

}  // namespace cairn
