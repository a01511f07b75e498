// `cairn convert --to` a format of another training system: the run and its report.
#pragma once

#include "convert/verbs/export.h"
#include "tools/commands/transfer_run.h"

namespace cairn {

// Writes and reports, or prints the cost. Notes about state that could not be carried go to stderr.
Result<int> RunExport(const OpenedSource& opened, const System& format, const ExportOptions& options,
                      const TransferFlags& flags);

}  // namespace cairn
