// Writes a checkpoint in the files of another training system, at any topology, with its optimizer.
//
// The format plans all files before a byte is written. One of them, cairn.json, records the source and the
// state that could not be carried.
#pragma once

#include <functional>

#include "convert/formats/systems.h"
#include "convert/transfer/transfer.h"

namespace cairn {

struct ExportOptions {
  TargetOptions target;
  WriterOptions writer;
  std::function<void(uint64_t)> progress;  // told the bytes done of TransferCost::moved_bytes; may be empty
};

// The notes say what cannot be carried. Errors: InvalidArgument and NotSupported if the format cannot hold
// the checkpoint at that topology.
Result<Transfer> PlanExport(CheckpointSource& source, const System& format, const ExportOptions& options);

// Plans and runs: makes the directory `target`. Errors: those of PlanExport and Transfer::Run; values beyond
// the range of the chosen type are refused.
Result<TransferResult> Export(FileSystem& fs, CheckpointSource& source, const System& format,
                              const std::string& target, const ExportOptions& options);

}  // namespace cairn
