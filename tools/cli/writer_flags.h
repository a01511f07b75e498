// The flags that verbs which write checkpoints share, and the output of --dry-run.
#pragma once

#include <CLI/CLI.hpp>

#include "convert/transfer/transfer.h"

namespace cairn {

// Adds --jobs, --max-memory and --direct.
void AddWriterFlags(CLI::App& verb, WriterOptions& options);

// Prints what a verb would take, and checks that `target` has room for it, unless that is empty.
// `overflowed`: elements that would become infinite; then nothing would be written. Measures the speed of the
// source by reading a part of it. Errors: those of reading and of CheckFreeSpace.
Status PrintDryRun(CheckpointSource& source, const TransferCost& cost, const std::string& target, bool json,
                   uint64_t overflowed = 0);

// Prepares the process for writing a checkpoint. Raises the limit of open files as far as possible, since all
// files of a target, or all shards of a stage, are open while they are written. Freed buffers go back to the
// system: glibc would keep more and more of them in its heaps.
void PrepareToWrite();

}  // namespace cairn
