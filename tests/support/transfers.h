// Plans and runs a transfer in one call.
#pragma once

#include <string>

#include "convert/verbs/export.h"
#include "convert/verbs/reshape.h"
#include "convert/verbs/strip.h"

namespace cairn {

inline Result<TransferResult> Reshape(FileSystem& fs, CheckpointSource& source, const std::string& run_dir,
                                      const ReshapeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Transfer transfer, PlanReshape(source, options));
  return transfer.Run(fs, run_dir);
}

inline Result<TransferResult> Export(FileSystem& fs, CheckpointSource& source, const System& format,
                                     const std::string& target, const ExportOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Transfer transfer, PlanExport(source, format, options));
  return transfer.Run(fs, target);
}

inline Result<TransferResult> Strip(FileSystem& fs, CheckpointSource& source, const std::string& target,
                                    const StripOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Transfer transfer, PlanStrip(source, options));
  return transfer.Run(fs, target);
}

}  // namespace cairn
