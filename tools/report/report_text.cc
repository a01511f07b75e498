// Markdown and terminal are TextTables of readable cells; CSV and JSON have numbers with all their digits.
// JSON always has every column.

#include "tools/report/report_text.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/cli/text_table.h"
#include "tools/plan/csv_table.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;
// The heading, then one row per run; numbers to the right.
TextTable TableOf(const ColumnList& columns, const std::vector<RunSummary>& runs) {
  std::vector<std::string> heading;
  for (const ReportColumn* column : columns) heading.emplace_back(column->heading);
  TextTable table(std::move(heading));
  for (size_t i = 0; i < columns.size(); ++i)
    if (columns[i]->number) table.AlignRight(i);
  for (const RunSummary& run : runs) {
    std::vector<std::string> row;
    for (const ReportColumn* column : columns) row.push_back(Cell(*column, run));
    table.Add(std::move(row));
  }
  return table;
}

ordered_json JsonNumber(const std::optional<double>& value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  if (std::abs(*value) < 1e15 && *value == std::round(*value)) return static_cast<int64_t>(*value);
  return *value;
}

ordered_json ToJson(const Failure& failed) {
  return {{"file", failed.file}, {"line", failed.line}, {"cause", failed.cause}, {"text", failed.text}};
}

ordered_json ToJson(const RunSummary& run) {
  ordered_json json;
  for (const ReportColumn* column : AllColumns()) {
    ordered_json& value = json[std::string(column->key)];
    if (column->number) {
      value = JsonNumber(column->number(run));
    } else if (std::string text = column->text(run); !text.empty() || column->key == "file") {
      value = std::move(text);
    }
  }
  json["complete"] = run.complete;
  json["files"] = run.files;
  json["recompute"] = run.config.recompute ? ordered_json(*run.config.recompute) : ordered_json(nullptr);
  json["failures"] = ordered_json::array();
  for (const Failure& failed : run.failures) json["failures"].push_back(ToJson(failed));
  if (run.failure) json["failures"].push_back(ToJson(*run.failure));
  return json;
}

}  // namespace

std::string MarkdownTable(const ColumnList& columns, const std::vector<RunSummary>& runs) {
  return TableOf(columns, runs).Markdown();
}

std::string CsvText(const ColumnList& columns, const std::vector<RunSummary>& runs) {
  CsvTable table;
  for (const ReportColumn* column : columns) table.header.emplace_back(column->key);
  for (const RunSummary& run : runs) {
    CsvTable::Row& row = table.rows.emplace_back();
    for (const ReportColumn* column : columns) row.cells.push_back(RawCell(*column, run));
  }
  return ToCsv(table);
}

std::string TerminalTable(const ColumnList& columns, const std::vector<RunSummary>& runs) {
  std::string out = TableOf(columns, runs).Text();
  for (const RunSummary& run : runs)
    if (run.failure)
      out += Printable(fmt::format("{}:{}: {}", run.failure->file, run.failure->line, run.failure->text),
                       Lines::kOne) +
             '\n';
  return out;
}

ordered_json ReportJson(const std::vector<RunSummary>& runs) {
  ordered_json list = ordered_json::array();
  for (const RunSummary& run : runs) list.push_back(ToJson(run));
  return list;
}

}  // namespace cairn
