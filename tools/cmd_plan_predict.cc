#include "tools/cmd_plan_predict.h"

#include <cstdio>
#include <memory>

#include "tools/choices.h"
#include "tools/exit_code.h"
#include "tools/output.h"
#include "tools/plan/predict_table.h"
#include "tools/text_table.h"

namespace cairn {
namespace {

struct PredictOptions {
  std::string rows;       // CSV
  std::string calibrate;  // CSV; empty: the runs that are compiled in
  std::string cluster = "a100-80";
  std::string leave_out;  // a column: cross-validation instead
  TableFormat format = TableFormat::kTable;
  bool quiet = false;
};

void Print(const CsvTable& table, TableFormat format) {
  if (format == TableFormat::kCsv) fmt::print("{}", ToCsv(table));
  if (format == TableFormat::kMarkdown) fmt::print("{}", ToMarkdown(table));
  if (format == TableFormat::kJson) PrintJson(ToJson(table));
  if (format != TableFormat::kTable) return;
  TextTable text(table.header);
  for (const CsvTable::Row& row : table.rows) text.Add(row.cells);
  text.Print();
}

void PrintNotes(const PredictOptions& options, const std::vector<std::string>& notes) {
  if (options.quiet) return;
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
}

Result<RunRows> ReadMeasured(const PredictOptions& options, const Cluster& cluster) {
  if (options.calibrate.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const CsvTable table, BuiltInRuns());
    return ParseRunRows(table, true, cluster);
  }
  CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(options.calibrate));
  CAIRN_ASSIGN_OR_RETURN(RunRows runs, ParseRunRows(table, true, cluster));
  PrintNotes(options, runs.notes);
  return runs;
}

Result<int> RunPredict(const PredictOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Cluster cluster, FindCluster(options.cluster));
  CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(options.rows));
  CAIRN_ASSIGN_OR_RETURN(const RunRows known, ReadMeasured(options, cluster));
  CAIRN_ASSIGN_OR_RETURN(const RunRows asked, ParseRunRows(table, false, cluster, known.rows));
  PrintNotes(options, asked.notes);
  Result<Calibration> calibration =
      options.calibrate.empty() ? BuiltInCalibration() : Calibrate(known.rows, cluster);
  CAIRN_RETURN_IF_ERROR(calibration.status());
  if (!options.quiet)
    fmt::print(stderr, "fitted on {} times and {} memories of {}; unexplained: {:.1f} % and {:.1f} %\n",
               calibration->time.rows, calibration->memory.rows,
               options.calibrate.empty() ? "the built-in A100 runs" : options.calibrate,
               100 * calibration->time.noise, 100 * calibration->memory.noise);
  std::vector<Prediction> predictions;
  for (const RunRow& row : asked.rows)
    predictions.push_back(Predict(row.shape, row.setup, cluster, *calibration));
  Print(WithPredictions(table, predictions), options.format);
  return kExitDone;
}

Result<int> RunLeaveOut(const PredictOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Cluster cluster, FindCluster(options.cluster));
  CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(options.rows));
  if (table.Column(options.leave_out) < 0)
    return InvalidArgument("{}: no column '{}' to leave groups out by", options.rows, options.leave_out);
  CAIRN_ASSIGN_OR_RETURN(const RunRows runs, ParseRunRows(table, true, cluster));
  PrintNotes(options, runs.notes);
  std::vector<std::string> groups;
  for (const CsvTable::Row& row : table.rows) groups.push_back(table.Cell(row, options.leave_out));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<HeldOut> held, CrossValidate(runs.rows, groups, cluster));
  Print(ErrorTable(held), options.format);
  const HeldOut all = SumOf(held);
  if (options.format == TableFormat::kTable)
    fmt::print(
        "Bounds said to hold 9 of 10 runs held {} of {} times and {} of {} memories that were left out.\n",
        all.within_time, all.time.all.size(), all.within_memory, all.memory.all.size());
  return kExitDone;
}

}  // namespace

void AddPlanPredict(CLI::App& plan, Verb& verb) {
  const auto options = std::make_shared<PredictOptions>();
  CLI::App* predict = plan.add_subcommand("predict", "memory, seconds and TFLOPs of the rows of a table");
  predict->add_option("ROWS", options->rows, "CSV of runs to predict; its measured columns are not looked at")
      ->required();
  predict->add_option("--calibrate", options->calibrate,
                      "CSV of measured runs to fit on; without it, 78 runs on A100-80 that are built in");
  predict->add_option("--cluster", options->cluster, "built-in cluster or TOML file, see cairn plan --help")
      ->capture_default_str();
  predict->add_option(
      "--leave-out", options->leave_out,
      "a column of ROWS: leave each of its groups out of the fit, predict it, and print the errors "
      "beside those of the plain formula");
  AddChoice<TableFormat>(*predict, "--format", options->format, "how to print",
                         {{"table", TableFormat::kTable},
                          {"csv", TableFormat::kCsv},
                          {"json", TableFormat::kJson},
                          {"md", TableFormat::kMarkdown}});
  predict->add_flag_callback(
      "--json", [options] { options->format = TableFormat::kJson; }, "the same as --format json");
  predict->add_flag("--quiet", options->quiet, "do not tell on stderr how rows were read");
  predict->footer(
      "Columns: hidden, tp, pp, mbs, gbs, gpus or dp, layers or size_b (10^9 parameters); heads, seq (2048), "
      "vocab\n"
      "(250000), zero (1), precision (bf16), recompute (full), mem_gb, sec_per_it, tflops (OOM in one of "
      "them: "
      "the run\n"
      "went out of memory), note, table.\n"
      "Appended: mem_gb_pred, sec_per_it_pred, tflops_pred, fits, then bounds within which 9 of 10 runs are "
      "expected\n"
      "(_lo, _hi) and fit_probability.\n\n" +
      HelpFooter("cairn plan predict rows.csv --calibrate runs.csv --format csv"));
  predict->callback([options, &verb] {
    verb = [options] { return options->leave_out.empty() ? RunPredict(*options) : RunLeaveOut(*options); };
  });
}

}  // namespace cairn
