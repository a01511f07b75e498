// Predictions for the rows of a table whose runs may be of several clusters.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/calibration.h"
#include "tools/plan/csv_table.h"
#include "tools/plan/run_row.h"

namespace cairn {

struct PredictOptions {
  std::string calibrate;  // CSV; empty: the runs that are compiled in
  std::string cluster;    // empty: the row's gpu, or a100-80
  Program program = Program::kMegatronDeepSpeed;
};

// What the predictions for one cluster are based on.
struct ClusterFit {
  std::string cluster;
  Calibration calibration;
  std::string from;                // the table of the runs; empty if no run of the cluster was measured
  std::vector<RunRow> rows;        // of that table
  std::vector<std::string> notes;  // blanks and contradictions, and how they were read
};

struct PredictedTable {
  CsvTable table;
  std::vector<ClusterFit> fits;
};

// The table with the predictions after each row; existing columns of their names are replaced. Errors:
// InvalidArgument naming file, line and column; those of FindCluster().
Result<PredictedTable> PredictRows(const CsvTable& table, const PredictOptions& options);

}  // namespace cairn
