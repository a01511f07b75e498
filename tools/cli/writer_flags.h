// The flags that verbs which write checkpoints share, and what --dry-run tells.
#pragma once

#include <CLI/CLI.hpp>

#include "convert/stream/step_builder.h"

namespace cairn {

// Adds --jobs, --max-memory and --direct.
void AddWriterFlags(CLI::App& verb, StepBuilderOptions& options);

// What a verb would take, as --dry-run prints it.
struct DryRunFacts {
  ProgramSize plan;         // of tensors that are copied; nothing where files are
  uint64_t read_bytes = 0;  // of the source's tensors
  uint64_t write_bytes = 0;
  uint64_t moved_bytes = 0;  // passes through memory in all; the time is estimated from it
  uint64_t files = 0;
  uint64_t peak_memory = 0;
  uint64_t overflowed = 0;  // elements that would become infinite, so that nothing would be written
};
// Reads the first part of the source to measure how fast that goes. Errors: those of reading.
Status PrintDryRun(CheckpointSource& source, const DryRunFacts& facts, bool json);

// Raises the process's limit of open files as far as it may: all files of a target, or all shards of a stage,
// are open while they are written.
void AllowManyFiles();

}  // namespace cairn
