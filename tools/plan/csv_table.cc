// libcsv calls back for each cell and each end of a record; the callbacks only collect. ParseCsv then skips
// blank records, takes the first of the others as the header and compares the rest with it. Blank lines are
// collected too, for messages that name the line. Both halves of "\r\n" end a record for libcsv; the callback
// drops the second.

#include "tools/plan/csv_table.h"

#include <csv.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <iomanip>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ckpt/base/parse_number.h"

namespace cairn {
namespace {

constexpr size_t kMaxBytes = 64 << 20;

struct Parsed {
  std::vector<std::vector<std::string>> records;  // one a line, blank lines too
  std::vector<std::string> current;
  int last_end = 0;  // the character that ended the last record
};

void OnCell(void* text, size_t size, void* parsed) {
  static_cast<Parsed*>(parsed)->current.emplace_back(static_cast<const char*>(text), size);
}

// `end` is the character that ended the record; of "\r\n" the second does not end another record.
void OnRecord(int end, void* parsed) {
  auto* p = static_cast<Parsed*>(parsed);
  const bool rest_of_end = end == '\n' && p->last_end == '\r' && p->current.empty();
  p->last_end = end;
  if (rest_of_end) return;
  p->records.push_back(std::move(p->current));
  p->current.clear();
}

// The marker that some spreadsheets put before the text is not part of it.
std::string_view WithoutByteOrderMark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

// The cell, quoted if it must be.
std::string CsvCell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::ostringstream quoted;
  quoted << std::quoted(text, '"', '"');
  return quoted.str();
}

std::string CsvLine(const std::vector<std::string>& cells) {
  std::vector<std::string> quoted;
  for (const std::string& cell : cells) quoted.push_back(CsvCell(cell));
  return fmt::format("{}\n", fmt::join(quoted, ","));
}

nlohmann::ordered_json JsonCell(const std::string& cell) {
  if (cell.empty()) return nullptr;
  if (const auto number = ParseNumber<double>(cell)) return *number;
  return cell;
}

}  // namespace

int CsvTable::Column(std::string_view column) const {
  const auto found = std::ranges::find(header, column);
  return found == header.end() ? -1 : static_cast<int>(found - header.begin());
}

const std::string& CsvTable::Cell(const Row& row, std::string_view column) const {
  static const std::string kEmpty;
  const int at = Column(column);
  return at < 0 ? kEmpty : row.cells[at];
}

Result<CsvTable> ParseCsv(std::string_view text, const std::string& name) {
  if (text.find('\0') != std::string_view::npos) return InvalidArgument("{}: this is not a text file", name);
  Parsed parsed;
  csv_parser parser;
  csv_init(&parser, CSV_STRICT | CSV_REPALL_NL | CSV_STRICT_FINI);
  const std::unique_ptr<csv_parser, decltype(&csv_free)> owner(&parser, csv_free);
  text = WithoutByteOrderMark(text);
  if (csv_parse(&parser, text.data(), text.size(), OnCell, OnRecord, &parsed) != text.size() ||
      csv_fini(&parser, OnCell, OnRecord, &parsed) != 0)
    return InvalidArgument("{}:{}: {}; is it a CSV file?", name, parsed.records.size() + 1,
                           csv_strerror(csv_error(&parser)));
  CsvTable table{name};
  int line = 0;
  for (std::vector<std::string>& record : parsed.records) {
    ++line;
    if (std::ranges::all_of(record, [](const std::string& cell) { return cell.empty(); })) continue;
    if (table.header.empty()) {
      table.header = std::move(record);
      continue;
    }
    if (record.size() != table.header.size())
      return InvalidArgument("{}:{}: {} cells, but the header has {}", name, line, record.size(),
                             table.header.size());
    table.rows.push_back({line, std::move(record)});
  }
  if (table.rows.empty()) return InvalidArgument("{}: no rows below a header", name);
  for (const std::string& column : table.header)
    if (!column.empty() && std::ranges::count(table.header, column) > 1)
      return InvalidArgument("{}: the header has '{}' twice", name, Shown(column));
  return table;
}

Result<CsvTable> ReadCsv(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string block(1 << 16, '\0'), all;
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    all.append(block.data(), file.gcount());
    if (all.size() > kMaxBytes)
      return InvalidArgument("{}: larger than 64 MB, too large for a table of runs", path);
  }
  if (all.empty()) return InvalidArgument("{}: empty, or cannot be read", path);
  return ParseCsv(all, path);
}

std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, 40));
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return shown;
}

std::string ToCsv(const CsvTable& table) {
  std::string text = CsvLine(table.header);
  for (const CsvTable::Row& row : table.rows) text += CsvLine(row.cells);
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
