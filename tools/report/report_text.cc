// Markdown and terminal pad readable cells to the widest of each column; CSV and JSON have numbers with all
// their digits. JSON has every column, whichever were chosen, except for name and notes, which repeat others.
// Each form escapes the characters that would end a cell.

#include "tools/report/report_text.h"

#include <algorithm>
#include <cmath>

#include "tools/cli/printable.h"
#include "tools/plan/csv_table.h"

namespace cairn {
namespace {

using nlohmann::ordered_json;
using TextRows = std::vector<std::vector<std::string>>;

// Characters, not bytes, of UTF-8.
size_t TextWidth(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// The heading, then a row a run.
TextRows TableRows(const ColumnList& columns, const std::vector<RunSummary>& runs) {
  TextRows rows(1);
  for (const ReportColumn* column : columns) rows[0].emplace_back(column->heading);
  for (const RunSummary& run : runs) {
    auto& row = rows.emplace_back();
    for (const ReportColumn* column : columns) row.push_back(Cell(*column, run));
  }
  return rows;
}

std::string Padded(std::string_view text, size_t width, bool right) {
  const std::string blanks(width - std::min(width, TextWidth(text)), ' ');
  return right ? blanks + std::string(text) : std::string(text) + blanks;
}

std::vector<size_t> Widths(const TextRows& rows, size_t least) {
  std::vector<size_t> widths(rows[0].size(), least);
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], TextWidth(row[i]));
  return widths;
}

// A cell must not end its column.
std::string MarkdownCell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
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
  for (const ReportColumn& column : ReportColumns()) {
    if (column.key == "name" || column.key == "notes") continue;
    if (column.text) {
      const std::string text = column.text(run);
      json[std::string(column.key)] =
          text.empty() && column.key != "file" ? ordered_json(nullptr) : ordered_json(text);
    } else {
      json[std::string(column.key)] = JsonNumber(column.number(run));
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
  TextRows rows = TableRows(columns, runs);
  for (auto& row : rows)
    for (std::string& cell : row) cell = MarkdownCell(cell);
  const std::vector<size_t> widths = Widths(rows, 3);
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < columns.size(); ++i)
      out += "| " + Padded(rows[r][i], widths[i], columns[i]->number != nullptr) + " ";
    out += "|\n";
    if (r > 0) continue;
    for (size_t i = 0; i < columns.size(); ++i) {
      const bool right = columns[i]->number != nullptr;
      out +=
          (right ? "| " + std::string(widths[i] - 1, '-') + ":" : "| :" + std::string(widths[i] - 1, '-')) +
          " ";
    }
    out += "|\n";
  }
  return out;
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
  const TextRows rows = TableRows(columns, runs);
  const std::vector<size_t> widths = Widths(rows, 1);
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i)
      line += (i ? "  " : "") + Padded(row[i], widths[i], columns[i]->number != nullptr);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
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
