// Predictions become cells of the table that was read, so that one CsvTable serves all forms: CSV, Markdown
// and JSON differ only in how they write a cell.

#include "tools/plan/predict_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace cairn {
namespace {

std::string Line(const std::vector<std::string>& cells) {
  std::vector<std::string> quoted;
  for (const std::string& cell : cells) quoted.push_back(CsvCell(cell));
  return fmt::format("{}\n", fmt::join(quoted, ","));
}

nlohmann::ordered_json JsonCell(const std::string& cell) {
  if (cell.empty()) return nullptr;
  double number = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
  if (error == std::errc() && end == cell.data() + cell.size()) return number;
  return cell;
}

std::string MarkdownLine(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) {
    line += ' ';
    for (const char c : cell) line += c == '|' ? "\\|" : c == '\n' || c == '\r' ? " " : std::string(1, c);
    line += " |";
  }
  return line + "\n";
}

}  // namespace

std::vector<std::string> PredictionColumns() {
  return {"mem_gb_pred",    "sec_per_it_pred",    "tflops_pred",        "fits",           "mem_gb_pred_lo",
          "mem_gb_pred_hi", "sec_per_it_pred_lo", "sec_per_it_pred_hi", "fit_probability"};
}

std::vector<std::string> PredictionCells(const Prediction& p) {
  const auto number = [](double value) { return fmt::format("{:.2f}", value); };
  return {number(p.memory_gb.value), number(p.seconds.value), number(p.tflops),
          p.fits ? "yes" : "no",     number(p.memory_gb.low), number(p.memory_gb.high),
          number(p.seconds.low),     number(p.seconds.high),  number(p.fit_probability)};
}

CsvTable WithPredictions(const CsvTable& table, const std::vector<Prediction>& predictions) {
  const std::vector<std::string> columns = PredictionColumns();
  CsvTable result{table.name};
  std::vector<size_t> kept;
  for (size_t i = 0; i < table.header.size(); ++i)
    if (std::find(columns.begin(), columns.end(), table.header[i]) == columns.end()) kept.push_back(i);
  for (const size_t i : kept) result.header.push_back(table.header[i]);
  result.header.insert(result.header.end(), columns.begin(), columns.end());
  for (size_t r = 0; r < table.rows.size(); ++r) {
    CsvTable::Row row{table.rows[r].line};
    for (const size_t i : kept) row.cells.push_back(table.rows[r].cells[i]);
    const std::vector<std::string> cells = PredictionCells(predictions[r]);
    row.cells.insert(row.cells.end(), cells.begin(), cells.end());
    result.rows.push_back(std::move(row));
  }
  return result;
}

std::string ToCsv(const CsvTable& table) {
  std::string text = Line(table.header);
  for (const CsvTable::Row& row : table.rows) text += Line(row.cells);
  return text;
}

std::string ToMarkdown(const CsvTable& table) {
  std::string text = MarkdownLine(table.header) + "|";
  for (size_t i = 0; i < table.header.size(); ++i) text += " --- |";
  text += '\n';
  for (const CsvTable::Row& row : table.rows) text += MarkdownLine(row.cells);
  return text;
}

nlohmann::ordered_json ToJson(const CsvTable& table) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const CsvTable::Row& row : table.rows) {
    nlohmann::ordered_json object;
    for (size_t i = 0; i < table.header.size(); ++i) object[table.header[i]] = JsonCell(row.cells[i]);
    list.push_back(std::move(object));
  }
  return list;
}

}  // namespace cairn
