// Recomputes the TFLOPs column of Markdown tables from their other columns.
#pragma once

#include <string>
#include <string_view>

#include "tools/report/run_summary.h"

namespace cairn {

struct RewriteOptions {
  RunConfig defaults;  // what the table has no column for: sequence length, vocabulary, recomputation, ...
  TflopsFormula formula =
      TflopsFormula::kAuto;  // auto: Megatron's for rows with layers, hidden size and vocabulary
};

struct RewrittenText {
  std::string text;
  int tables = 0;    // with a column of TFLOPs
  int computed = 0;  // rows with all that the formula needs
  int changed = 0;   // cells
  int left = 0;      // rows that lack something, or failed; as they were
};

// Everything but digits of TFLOPs stays byte for byte; a cell keeps its number of decimals (2 where it was
// empty or
// "-"). Columns are known by the headings that people give them: GPUs or Nodes, Size, DP, TP, PP, MBS, GAS,
// GBS, Sec/it, TFLOPs, Layers, Hidden, Seq, Vocab. Errors: InvalidArgument (no table with TFLOPs and
// seconds).
Result<RewrittenText> RewriteTflops(std::string_view markdown, const RewriteOptions& options);

}  // namespace cairn
