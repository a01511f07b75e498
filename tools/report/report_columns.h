// The columns of reports: name, heading, and the value of a run.
#pragma once

#include <optional>
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
  // The number's form in tables; null: the shortest exact one.
  std::string (*show)(double) = nullptr;
  std::string (*text)(const RunSummary&) = nullptr;
};

using ColumnList = std::vector<const ReportColumn*>;

// All but name and notes, which repeat others.
ColumnList AllColumns();

// Columns by key or heading, in any case. Errors: InvalidArgument naming all columns.
Result<ColumnList> FindColumns(const std::vector<std::string>& names);

// The usual columns of tables. `days`: with the days of the planned training.
ColumnList MarkdownColumns(bool days);
ColumnList TerminalColumns(bool days);

// The cell of a table; "-" if it is empty.
std::string Cell(const ReportColumn& column, const RunSummary& summary);
// A number with all its digits, or the text; "" if the run has no value.
std::string RawCell(const ReportColumn& column, const RunSummary& summary);

// Sorts by the column, runs without a value last.
void SortBy(const ReportColumn& column, bool descending, std::vector<RunSummary>& runs);

// "18B", "1.3B", "350M"
std::string SizeText(double parameters);

}  // namespace cairn
