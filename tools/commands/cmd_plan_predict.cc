// PredictRows() (predict_rows.h) does the work; here its results are printed. Notes go to stderr, because
// programs read the table on stdout.

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/cli/choices.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/commands/commands.h"
#include "tools/commands/plan_options.h"
#include "tools/plan/predict_rows.h"

namespace cairn {
namespace {

struct PredictVerbOptions {
  std::string rows;  // CSV
  PredictOptions predict;
  TableFormat format = TableFormat::kTable;
};

void Print(const CsvTable& table, TableFormat format) {
  if (format == TableFormat::kCsv) return fmt::print("{}", ToCsv(table));
  if (format == TableFormat::kJson) return PrintJson(ToJson(table));
  TextTable text(table.header);
  for (const CsvTable::Row& row : table.rows) text.Add(row.cells);
  fmt::print("{}", format == TableFormat::kMarkdown ? text.Markdown() : text.Text());
}

void PrintFit(const ClusterFit& fit, Program program) {
  for (const std::string& note : fit.notes) fmt::print(stderr, "note: {}\n", note);
  const Calibration& c = fit.calibration;
  if (fit.from.empty())
    fmt::print(stderr, "{}: no measured run, so the bounds of times allow for any cluster\n", fit.cluster);
  else
    fmt::print(stderr, "{}: fitted on {} times and {} memories of {}; unexplained: {:.1f} % and {:.1f} %\n",
               fit.cluster, c.time.rows, c.memory.rows, fit.from, 100 * c.time.noise, 100 * c.memory.noise);
  fmt::print(stderr, "{}: memory as {} holds it\n", fit.cluster, NameOf(program));
}

Result<int> RunPredict(const PredictVerbOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(options.rows));
  CAIRN_ASSIGN_OR_RETURN(const PredictedTable predicted, PredictRows(table, options.predict));
  for (const ClusterFit& fit : predicted.fits)
    if (!NotesAreQuiet()) PrintFit(fit, options.predict.program);
  Print(predicted.table, options.format);
  return kExitDone;
}

}  // namespace

void AddPlanPredict(CLI::App& plan, Verb& verb) {
  const auto [predict, options] =
      AddVerb(plan, verb, "predict", "predict memory, seconds and TFLOPs of the rows of a table", RunPredict);
  predict->add_option("ROWS", options->rows, "CSV of runs to predict; its measured columns are ignored")
      ->required();
  predict
      ->add_option(
          "--calibrate", options->predict.calibrate,
          "CSV of three or more measured runs to fit on; default: the cluster's built-in runs, if any")
      ->type_name("FILE");
  predict
      ->add_option("--cluster", options->predict.cluster,
                   "built-in cluster or TOML file, see cairn plan --help; default: that of the column gpu, "
                   "else a100-80")
      ->type_name("NAME|FILE");
  AddFramework(*predict, options->predict.program);
  AddTableFormat(*predict, options->format);
  predict->footer(
      "Columns: hidden, tp, pp, mbs (blank: the fastest that fits), gbs, gpus or dp, layers or size_b (10^9 "
      "parameters);\n"
      "gpu (a100-80, h100, ...), heads, seq (2048), vocab (250000), zero (1), precision (bf16, fp16, fp32, "
      "fp8), recompute\n"
      "(full, selective, none), virtual_stages (1), first_layers and last_layers (as the other stages), "
      "sequence_parallel (0),\n"
      "flash_attention (0), mem_gb, sec_per_it, tflops (OOM in one of them: the run ran out of memory), "
      "note, table.\n"
      "Appended: mem_gb_pred, sec_per_it_pred, tflops_pred, fits, then bounds within which 9 of 10 runs are "
      "expected\n"
      "(_lo, _hi) and fit_probability.\n\n" +
      HelpFooter("cairn plan predict rows.csv --calibrate runs.csv --format csv"));
}

}  // namespace cairn
