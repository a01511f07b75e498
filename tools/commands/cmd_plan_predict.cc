// Rows are grouped by cluster, each group is predicted with a calibration of its cluster, and the predictions
// go back to the rows' places: the table keeps its order. Notes go to stderr, because programs read the table
// on stdout.

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "tools/cli/choices.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/text_table.h"
#include "tools/commands/commands.h"
#include "tools/commands/plan_options.h"

namespace cairn {
namespace {

struct PredictOptions {
  std::string rows;       // CSV
  std::string calibrate;  // CSV; empty: the runs that are compiled in
  std::string cluster;    // empty: the row's gpu, or a100-80
  TableFormat format = TableFormat::kTable;
  Program framework = Program::kMegatronDeepSpeed;
};

constexpr char kUsualCluster[] = "a100-80";

// The columns that are appended, and their cells.
std::vector<std::pair<std::string, std::string>> CellsOf(const Prediction& p) {
  const auto number = [](double value) { return fmt::format("{:.2f}", value); };
  return {{"mem_gb_pred", number(p.memory_gb.value)},
          {"sec_per_it_pred", number(p.seconds.value)},
          {"tflops_pred", number(p.tflops)},
          {"fits", p.fits ? "yes" : "no"},
          {"mem_gb_pred_lo", number(p.memory_gb.low)},
          {"mem_gb_pred_hi", number(p.memory_gb.high)},
          {"sec_per_it_pred_lo", number(p.seconds.low)},
          {"sec_per_it_pred_hi", number(p.seconds.high)},
          {"fit_probability", number(p.fit_probability)}};
}

// The table with the predictions behind each row; a column of their name that it has already is replaced.
CsvTable WithPredictions(CsvTable table, const std::vector<Prediction>& predictions) {
  for (const auto& [name, cell] : CellsOf({})) {
    if (const int column = table.Column(name); column >= 0) {
      table.header.erase(table.header.begin() + column);
      for (CsvTable::Row& row : table.rows) row.cells.erase(row.cells.begin() + column);
    }
    table.header.push_back(name);
    for (CsvTable::Row& row : table.rows) row.cells.emplace_back();
  }
  for (size_t r = 0; r < table.rows.size(); ++r)
    for (const auto& [name, cell] : CellsOf(predictions[r])) table.rows[r].cells[table.Column(name)] = cell;
  return table;
}

void Print(const CsvTable& table, TableFormat format) {
  if (format == TableFormat::kCsv) return fmt::print("{}", ToCsv(table));
  if (format == TableFormat::kJson) return PrintJson(ToJson(table));
  TextTable text(table.header);
  for (const CsvTable::Row& row : table.rows) text.Add(row.cells);
  fmt::print("{}", format == TableFormat::kMarkdown ? text.Markdown() : text.Text());
}

void PrintNotes(const std::vector<std::string>& notes) {
  if (NotesAreQuiet()) return;
  for (const std::string& note : notes) fmt::print(stderr, "note: {}\n", note);
}

// The rows of the table that ran on one cluster, and their places in it.
struct Part {
  CsvTable table;
  std::vector<size_t> rows;
};

// By cluster: the requested one, else the one in the row.
std::map<std::string, Part> Split(const CsvTable& table, const std::string& cluster) {
  std::map<std::string, Part> parts;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const std::string& gpu = table.Cell(table.rows[i], "gpu");
    const Cluster* known = BuiltInCluster(gpu);
    Part& part = parts[!cluster.empty() ? cluster : known ? known->name : !gpu.empty() ? gpu : kUsualCluster];
    part.table.name = table.name;
    part.table.header = table.header;
    part.table.rows.push_back(table.rows[i]);
    part.rows.push_back(i);
  }
  return parts;
}

// A cell of a table names no file.
Result<Cluster> ClusterOf(const PredictOptions& options, const std::string& name) {
  if (!options.cluster.empty() || BuiltInCluster(name)) return FindCluster(name);
  return InvalidArgument("{}: gpu '{}' is not a built-in cluster; name one with --cluster", options.rows,
                         Shown(name));
}

struct Known {
  Calibration calibration;
  std::vector<RunRow> rows;  // that it was fitted on
  std::string from;          // their table; empty if no run of the cluster was measured
};

void PrintFit(const std::string& name, const Known& known, Program framework) {
  const Calibration& c = known.calibration;
  if (known.from.empty())
    fmt::print(stderr, "{}: no measured run; the bounds of times are as wide as clusters differ\n", name);
  else
    fmt::print(stderr, "{}: fitted on {} times and {} memories of {}; unexplained: {:.1f} % and {:.1f} %\n",
               name, c.time.rows, c.memory.rows, known.from, 100 * c.time.noise, 100 * c.memory.noise);
  fmt::print(stderr, "{}: memory as {} holds it\n", name, NameOf(framework));
}

// From the rows of the --calibrate table that ran on this cluster, else from what is compiled in.
Result<Known> KnownOf(const PredictOptions& options, const std::string& name, const Cluster& cluster) {
  Known known;
  known.from = "the runs of " + cluster.name + " that are built in";
  if (!options.calibrate.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(options.calibrate));
    std::map<std::string, Part> parts = Split(table, options.cluster);
    if (const auto part = parts.find(name); part != parts.end()) {
      CAIRN_ASSIGN_OR_RETURN(RunRows runs,
                             ParseRunRows(part->second.table, true, cluster, {}, options.framework));
      PrintNotes(runs.notes);
      known.rows = std::move(runs.rows);
      known.from = options.calibrate;
    }
  }
  if (!known.rows.empty()) {
    CAIRN_ASSIGN_OR_RETURN(known.calibration, Calibrate(known.rows, cluster));
  } else {
    CAIRN_ASSIGN_OR_RETURN(known.calibration, BuiltInCalibration(cluster, options.framework));
    CAIRN_ASSIGN_OR_RETURN(known.rows, BuiltInRuns(cluster.measured, options.framework));
    if (cluster.measured.empty()) known.from.clear();
  }
  return known;
}

Result<int> RunPredict(const PredictOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(options.rows));
  std::vector<Prediction> predictions(table.rows.size());
  for (const auto& [name, part] : Split(table, options.cluster)) {
    CAIRN_ASSIGN_OR_RETURN(const Cluster cluster, ClusterOf(options, name));
    CAIRN_ASSIGN_OR_RETURN(const Known known, KnownOf(options, name, cluster));
    CAIRN_ASSIGN_OR_RETURN(const RunRows asked,
                           ParseRunRows(part.table, false, cluster, known.rows, options.framework));
    PrintNotes(asked.notes);
    if (!NotesAreQuiet()) PrintFit(name, known, options.framework);
    for (size_t i = 0; i < part.rows.size(); ++i)
      predictions[part.rows[i]] = PredictRow(asked.rows[i], cluster, known.calibration);
  }
  Print(WithPredictions(table, predictions), options.format);
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
          "--calibrate", options->calibrate,
          "CSV of three or more measured runs to fit on; default: the cluster's built-in runs, if any")
      ->type_name("FILE");
  predict
      ->add_option("--cluster", options->cluster,
                   "built-in cluster or TOML file, see cairn plan --help; default: that of the column gpu, "
                   "else a100-80")
      ->type_name("NAME|FILE");
  AddFramework(*predict, options->framework);
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
