// A report as one page that needs no other file.
#pragma once

#include <string>
#include <vector>

#include "tools/report/report_columns.h"

namespace cairn {

// `pictures` are SVG documents.
std::string HtmlPage(const ColumnList& columns, const std::vector<RunSummary>& runs,
                     const std::vector<std::string>& pictures);

}  // namespace cairn
