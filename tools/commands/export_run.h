// `cairn convert --to` a format of another training system: the run and its report.
#pragma once

#include "convert/verbs/export.h"
#include "tools/cli/verb.h"
#include "tools/source/open_ckpt.h"

namespace cairn {

struct ExportFlags {
  ExportOptions options;
  bool dry_run = false;
  bool json = false;
};

// Writes and reports, or prints the cost. Notes about state that could not be carried go to stderr.
Result<int> RunExport(const OpenedSource& opened, const System& format, const std::string& target,
                      const ExportFlags& flags);

}  // namespace cairn
