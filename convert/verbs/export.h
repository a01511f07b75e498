// Writes a checkpoint in the files of another training system, at any topology, with its optimizer.
//
// Streams the source once in a fixed window of memory (write_foreign.h). The file cairn.json records the
// source and the state that could not be carried.
#pragma once

#include <functional>

#include "convert/formats/systems.h"
#include "convert/stream/step_builder.h"
#include "convert/stream/transfer.h"

namespace cairn {

struct ExportOptions {
  TargetOptions target;
  StepBuilderOptions writer;
  std::function<void(uint64_t)> progress;  // told the bytes done of TransferCost::moved_bytes; may be empty
};

// Writes nothing. Errors: those of Export that need no reading.
Result<TransferCost> EstimateExport(const CheckpointSource& source, const System& format,
                                    const ExportOptions& options);

// Makes the directory `target`; the notes say what could not be carried. Errors: AlreadyExists; NoSpace;
// InvalidArgument and NotSupported if the format cannot hold the checkpoint at that topology, or values
// are beyond the range of the chosen type; Corrupt if the files read back differ from those written.
Result<TransferResult> Export(FileSystem& fs, CheckpointSource& source, const System& format,
                              const std::string& target, const ExportOptions& options);

}  // namespace cairn
