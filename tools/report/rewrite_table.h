// Recomputes the TFLOPs column of tables in Markdown or CSV from their other columns.
#pragma once

#include <map>
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
  int without_seconds = 0;  // those of them without a column of seconds: their rows are not changed
  int computed = 0;         // rows with all inputs of the formula
  int changed = 0;          // cells
  int left = 0;             // rows that lack an input, or failed; unchanged
  // For each input, how many of them lack it: "seconds", "gpus", "global_batch_size", "seq_length", "size";
  // "tflops": the cell has a text that is not a number.
  std::map<std::string, int> lacking;
};

// Everything except the digits of TFLOPs is unchanged, byte for byte; a cell keeps its number of decimals (2
// if it was empty or "-"). Columns are known by usual headings: GPUs or Nodes, Size, DP, TP, PP, MBS, GAS,
// GBS, Sec/it or Speed (seconds), TFLOPs, Layers, Hidden, Seq, Vocab, Recompute (full, selective or none).
// Errors: InvalidArgument (no table with TFLOPs).
Result<RewrittenText> RewriteTflops(std::string_view markdown, const RewriteOptions& options);

}  // namespace cairn
