// A table of comma-separated values with a header, in the form of RFC 4180 (parsed by libcsv).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

struct CsvTable {
  std::string name;  // the file, for messages
  std::vector<std::string> header;
  struct Row {
    int line = 0;                    // 1-based, of the file; records that span lines count as one
    std::vector<std::string> cells;  // as many as the header
  };
  std::vector<Row> rows;

  // -1 if the table has no such column.
  int Column(std::string_view name) const;
  // Empty if the table has no such column.
  const std::string& Cell(const Row& row, std::string_view column) const;
};

// Errors: InvalidArgument naming the file and line: cannot be read, larger than 64 MB, bad quotes, a row with
// more or fewer cells than the header, a column twice, no rows.
Result<CsvTable> ReadCsv(const std::string& path);
Result<CsvTable> ParseCsv(std::string_view text, const std::string& name);

// The cell for messages: at most 40 characters, '?' for those that cannot be printed on one line.
std::string Shown(std::string_view text);

std::string ToCsv(const CsvTable& table);
// A list of one object a row; cells that are numbers as numbers, blank ones as null.
nlohmann::ordered_json ToJson(const CsvTable& table);

}  // namespace cairn
