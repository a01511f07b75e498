// A report as text: Markdown, CSV, JSON or columns for a terminal.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/report/report_columns.h"

namespace cairn {

// Markdown with columns as wide as their widest cell, numbers to the right.
std::string MarkdownTable(const ColumnList& columns, const std::vector<RunSummary>& runs);

// RFC 4180; numbers with all their digits.
std::string CsvText(const ColumnList& columns, const std::vector<RunSummary>& runs);

// Columns for a terminal, and below them the line of each failure.
std::string TerminalTable(const ColumnList& columns, const std::vector<RunSummary>& runs);

// A list of objects with all columns, files, failures and configuration.
nlohmann::ordered_json ReportJson(const std::vector<RunSummary>& runs);

}  // namespace cairn
