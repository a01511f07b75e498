// Writes a checkpoint in the files of another training system, at any topology, with its optimizer.
//
// One pass over the source in a fixed window of memory (write_foreign.h). A file cairn.json beside it says
// where it comes from and what could not be carried.
#pragma once

#include <functional>

#include "convert/foreign/target_format.h"
#include "convert/stream/step_builder.h"
#include "convert/stream/transfer_cost.h"

namespace cairn {

struct ExportOptions {
  TargetOptions target;
  StepBuilderOptions writer;
  std::function<void(uint64_t)> progress;  // told the bytes done of TransferCost::moved_bytes; may be empty
};

// Writes nothing. Errors: those of Export that need no reading.
Result<TransferCost> EstimateExport(const CheckpointSource& source, const TargetFormat& format,
                                    const ExportOptions& options);

struct ExportResult {
  std::string path;
  std::vector<std::string> notes;  // what could not be carried
  uint64_t tensors = 0;
  uint64_t files = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  Digest source_fingerprint{};  // over the tensors that were read
};

// Makes the directory `target`. Errors: AlreadyExists; NoSpace; InvalidArgument and NotSupported where the
// format cannot hold the checkpoint at that topology, or values are beyond the range of the chosen type;
// Corrupt where what is read back is not what was written.
Result<ExportResult> Export(FileSystem& fs, CheckpointSource& source, const TargetFormat& format,
                            const std::string& target, const ExportOptions& options);

}  // namespace cairn
