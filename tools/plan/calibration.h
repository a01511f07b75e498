// The planner's constants, fitted on measured runs, with their uncertainty.
#pragma once

#include <string>
#include <vector>

#include "tools/plan/constants.h"
#include "tools/plan/memory_model.h"
#include "tools/plan/run_row.h"
#include "tools/plan/time_model.h"

namespace cairn {

// Constants with their uncertainty.
template <typename Constants>
struct FittedConstants {
  Constants constants;
  std::vector<std::vector<double>> axes;  // of their logarithms: Fit::axes
  double noise = 0;  // standard deviation of log(predicted / measured) that no constant explains
  double widen = 1;  // factor on all deviations, for tables that were not fitted on
  int rows = 0;      // measurements used
};

struct Calibration {
  FittedConstants<TimeConstants> time;
  FittedConstants<MemoryConstants> memory;
  // A run fits if its prediction stays below this share of the GPU's memory; near 1, chosen for the most
  // right answers on the measured runs, those that ran out of memory among them.
  double usable = 1;
};

// The weight of each row: rows of one configuration, with the same model and setup, share the weight of one.
std::vector<double> RowWeights(const std::vector<const RunRow*>& rows);

// Rows count by RowWeights. If there are three groups (RunRow::group) or more, bounds are widened until they
// hold 9 of 10 rows of each group when the others are fitted. Errors: InvalidArgument.
Result<Calibration> Calibrate(const std::vector<RunRow>& rows, const Cluster& cluster);

// Fitted on the runs that are compiled in and were measured on exactly this cluster (Cluster::measured). For
// any other, times follow from the priors, and their bounds from the differences between clusters. Memory
// depends on the program: that of Megatron-DeepSpeed is fitted on Jean Zay's runs for every cluster, that of
// Megatron-LM follows from the priors.
Result<Calibration> BuiltInCalibration(const Cluster& cluster, Program program = Program::kMegatronDeepSpeed);
// Empty if there is no table for this place.
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
  double model_tflops = 0;  // only of the model
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
