// The planner's constants fitted on measured runs, and how sure they are.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/constants.h"
#include "tools/plan/memory_model.h"
#include "tools/plan/run_row.h"
#include "tools/plan/time_model.h"

namespace cairn {

// Constants, and how sure they are.
template <typename Constants>
struct FittedConstants {
  Constants constants;
  std::vector<std::vector<double>> axes;  // of their logarithms: Fit::axes
  double noise = 0;  // standard deviation of log(predicted / measured) that no constant explains
  double widen = 1;  // factor on all deviations, so that bounds hold for tables that were not fitted on
  int rows = 0;      // measurements used
};

struct Calibration {
  FittedConstants<TimeConstants> time;
  FittedConstants<MemoryConstants> memory;
  // A run fits where its prediction stays below this share of the GPU's memory; near 1, set so that the
  // measured runs (and those that went out of memory) are called right.
  double usable = 1;
};

// The weight of each row: rows of one configuration, with the same model and setup, share the weight of one.
std::vector<double> RowWeights(const std::vector<const RunRow*>& rows);

// Rows count by RowWeights. Bounds are widened until they hold 9 of 10 rows of each
// group (RunRow::group) when the others are fitted, if there are three groups or more. Errors:
// InvalidArgument.
Result<Calibration> Calibrate(const std::vector<RunRow>& rows, const Cluster& cluster);

// Fitted on the runs that are compiled in and were measured on this very cluster (Cluster::measured). Of any
// other, times are what is believed before a run was measured, with the spread that clusters have among each
// other in their bounds. Memory depends on the program: that of Megatron-DeepSpeed is fitted on Jean Zay's
// runs for every cluster, that of Megatron-LM is believed as it is counted.
Result<Calibration> BuiltInCalibration(const Cluster& cluster, Program program = Program::kMegatronDeepSpeed);
// None if the place has no table.
Result<std::vector<RunRow>> BuiltInRuns(const std::string& place,
                                        Program program = Program::kMegatronDeepSpeed);

// A prediction with the bounds between which 9 of 10 measurements are expected.
struct Estimate {
  double value = 0;
  double low = 0;
  double high = 0;
};

struct Prediction {
  Estimate seconds;         // of one iteration
  Estimate memory_gb;       // of the GPU that needs most
  double tflops = 0;        // of a GPU, as published tables have them (formulas.h: MegatronTflops)
  double model_tflops = 0;  // the same of the model alone
  bool fits = false;
  double fit_probability = 0;
  IterationTime time;
  PipelineMemory memory;
};

Prediction Predict(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster,
                   const Calibration& calibration);
// With the fastest of the micro-batches that the row leaves open.
Prediction PredictRow(const RunRow& row, const Cluster& cluster, const Calibration& calibration);

}  // namespace cairn
