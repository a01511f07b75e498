// Writes a checkpoint in the files of another training system, at any topology, with its optimizer.
//
// One pass over the source in a fixed window of memory (write_foreign.h). A file cairn.json beside it says
// where it comes from and what could not be carried.
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
// InvalidArgument and NotSupported where the format cannot hold the checkpoint at that topology, or values
// are beyond the range of the chosen type; Corrupt where what is read back is not what was written.
Result<TransferResult> Export(FileSystem& fs, CheckpointSource& source, const System& format,
                              const std::string& target, const ExportOptions& options);

}  // namespace cairn
