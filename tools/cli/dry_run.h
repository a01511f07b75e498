// The output of --dry-run.
#pragma once

#include <string>

#include "convert/transfer/transfer.h"

namespace cairn {

// Prints what a verb would take, and checks that `target` has room for it, unless that is empty.
// `overflowed`: elements that would become infinite; then nothing would be written. Measures the speed of the
// source by reading a part of it. Errors: those of reading and of CheckFreeSpace.
Status PrintDryRun(CheckpointSource& source, const TransferCost& cost, const std::string& target, bool json,
                   uint64_t overflowed = 0);

}  // namespace cairn
