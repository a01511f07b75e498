// Rows of a table with the planner's predictions behind them, in the forms that people and programs read.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/plan/calibration.h"
#include "tools/plan/csv_table.h"

namespace cairn {

enum class TableFormat { kTable, kCsv, kJson, kMarkdown };

// The columns that are appended: mem_gb_pred, sec_per_it_pred, tflops_pred, fits, then the bounds of 9 of 10
// runs (mem_gb_pred_lo, mem_gb_pred_hi, sec_per_it_pred_lo, sec_per_it_pred_hi) and fit_probability.
std::vector<std::string> PredictionColumns();
std::vector<std::string> PredictionCells(const Prediction& prediction);

// The table with the columns appended; a column that the table has already is replaced.
CsvTable WithPredictions(const CsvTable& table, const std::vector<Prediction>& predictions);

std::string ToCsv(const CsvTable& table);
std::string ToMarkdown(const CsvTable& table);
// A list of one object a row; cells that are numbers as numbers, blank ones as null.
nlohmann::ordered_json ToJson(const CsvTable& table);

}  // namespace cairn
