// Recomputes the TFLOPs column of tables in Markdown or CSV from their other columns.
#pragma once

#include <string>
#include <string_view>

#include "tools/report/run_summary.h"

namespace cairn {

enum class TableSyntax { kMarkdown, kCsv };

struct RewriteOptions {
  TableSyntax syntax = TableSyntax::kMarkdown;
  RunConfig defaults;  // facts without a column: sequence length, vocabulary, recomputation, ...
  TflopsFormula formula =
      TflopsFormula::kAuto;  // auto: Megatron's for rows with layers, hidden size and vocabulary
};

struct RewrittenText {
  std::string text;
  int tables = 0;           // with a column of TFLOPs
  int without_seconds = 0;  // tables of these without a column of seconds: all their rows are left
  int computed = 0;         // rows with all that the formula needs
  int changed = 0;          // cells
  int left = 0;             // rows that lack something, or failed; as they were
};

// Everything but digits of TFLOPs stays byte for byte; a cell keeps its number of decimals (2 if it was empty
// or "-"). Columns are known by the headings that people give them: GPUs or Nodes, Size, DP, TP, PP, MBS,
// GAS, GBS, Sec/it or Speed (seconds), TFLOPs, Layers, Hidden, Seq, Vocab, Recompute (full, selective or
// none). Errors: InvalidArgument (no table with TFLOPs).
Result<RewrittenText> RewriteTflops(std::string_view markdown, const RewriteOptions& options);

}  // namespace cairn
