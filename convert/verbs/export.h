// Writes a checkpoint in the files of another training system, at any topology, with its optimizer.
//
// The format plans all files before a byte is written. One of them, cairn.json, records the source and the
// state that could not be carried.
#pragma once

#include "convert/formats/systems.h"
#include "convert/transfer/transfer.h"

namespace cairn {

struct ExportOptions {
  TargetOptions target;
  WriterOptions writer;
};

// The notes say what cannot be carried. Values beyond the range of the chosen type are an error. Errors:
// InvalidArgument and NotSupported if the format cannot hold the checkpoint at that topology.
Result<Transfer> PlanExport(CheckpointSource& source, const System& format, const ExportOptions& options);

}  // namespace cairn
