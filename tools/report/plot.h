// Pictures of runs: loss, seconds and TFLOPs against the iteration, or against the column that a sweep
// varies.
#pragma once

#include <string>
#include <vector>

#include "tools/report/report_columns.h"

namespace cairn {

struct PlotOptions {
  std::string x = "iteration";  // or a column of numbers, with a point a run
  std::vector<std::string> y;   // empty: loss, sec_per_it, tflops; for a sweep sec_per_it, tflops
};

enum class PlotType { kPng, kSvg };

// By the end of the file's name. Errors: InvalidArgument.
Result<PlotType> PlotTypeOf(const std::string& path);

// The commands for gnuplot. Errors: InvalidArgument (no such column, or no run has both values).
Result<std::string> PlotCommands(const std::vector<RunSummary>& runs, const PlotOptions& options,
                                 PlotType type);

// The picture for the file `path`. Errors: those of PlotTypeOf and PlotCommands; NotFound if gnuplot is not
// installed, IoError with the first line of its message.
Result<std::string> Plot(const std::vector<RunSummary>& runs, const PlotOptions& options,
                         const std::string& path);

}  // namespace cairn
