// How wrong the planner is on runs that it was not fitted on.
//
// The rows are split by a column; each group in turn is left out, the constants are fitted on the others, and
// the group is predicted. For comparison, the plain formula: one efficiency (the median TFLOPs of the
// others) for time, and bytes a parameter times one factor for memory.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/calibration.h"
#include "tools/plan/csv_table.h"

namespace cairn {

// Absolute relative errors, as fractions.
struct Errors {
  std::vector<double> all;
  double Median() const;  // 0 without any
  double Worst() const;
  void Add(double predicted, double measured);
};

struct HeldOut {
  std::string group;
  size_t rows = 0;
  Errors time, memory;              // ours
  Errors plain_time, plain_memory;  // the plain formula's
  int within_time = 0;              // measurements within the stated bounds
  int within_memory = 0;
  int calls = 0;  // rows of which is known whether they fitted
  int right_calls = 0;
  int best_rank = 0;   // of the measured best configuration among those proposed; 0: nothing to rank
  int candidates = 0;  // different configurations that were ranked
};

// Groups in the order of their first row. `sum` of all groups is appended by SumOf.
Result<std::vector<HeldOut>> CrossValidate(const std::vector<RunRow>& rows,
                                           const std::vector<std::string>& groups, const Cluster& cluster);
HeldOut SumOf(const std::vector<HeldOut>& groups);

// One row a group and one for all.
CsvTable ErrorTable(const std::vector<HeldOut>& groups);

}  // namespace cairn
