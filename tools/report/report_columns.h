// The columns that a report can have: name, heading, and what a run has in them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"
#include "tools/report/run_summary.h"

namespace cairn {

struct ReportColumn {
  std::string_view key;      // in JSON and CSV, and for --sort and --columns
  std::string_view heading;  // in tables
  // A number, or a text; one of the two is null.
  std::optional<double> (*number)(const RunSummary&) = nullptr;
  std::string (*text)(const RunSummary&) = nullptr;
  // How tables write the number; null: as short as it is exact.
  std::string (*show)(double) = nullptr;
};

std::span<const ReportColumn> ReportColumns();

using ColumnList = std::vector<const ReportColumn*>;

// Columns by key or heading, in any case. Errors: InvalidArgument naming the ones there are.
Result<ColumnList> FindColumns(const std::vector<std::string>& names);

// The usual columns of tables. `days`: with the days of the planned training.
ColumnList MarkdownColumns(bool days);
ColumnList TerminalColumns(bool days);
ColumnList PageColumns(bool days);  // how a run ended comes first: a page scrolls sideways

// The cell of a table; "-" if it is empty.
std::string Cell(const ReportColumn& column, const RunSummary& summary);
// A number with all its digits, or the text; "" if there is nothing.
std::string RawCell(const ReportColumn& column, const RunSummary& summary);

// By the column, those without a value last.
void SortBy(const ReportColumn& column, bool descending, std::vector<RunSummary>& runs);

// "18B", "1.3B", "350M"
std::string SizeText(double parameters);

}  // namespace cairn
