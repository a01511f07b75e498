// Rows are grouped by cluster, each group is predicted with a calibration of its cluster, and the predictions
// go back to the rows' places: the table keeps its order.

#include "tools/plan/predict_rows.h"

#include <map>

namespace cairn {
namespace {

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
Result<Cluster> ClusterOf(const PredictOptions& options, const CsvTable& table, const std::string& name) {
  if (!options.cluster.empty() || BuiltInCluster(name)) return FindCluster(name);
  return InvalidArgument("{}: gpu '{}' is not a built-in cluster; name one with --cluster", table.name,
                         Shown(name));
}

// From the rows of the --calibrate table that ran on this cluster, else from the built-in runs.
Result<ClusterFit> FitOf(const PredictOptions& options, const std::string& name, const Cluster& cluster) {
  ClusterFit fit{.cluster = name};
  fit.from = "the runs of " + cluster.name + " that are built in";
  if (!options.calibrate.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ReadCsv(options.calibrate));
    std::map<std::string, Part> parts = Split(table, options.cluster);
    if (const auto part = parts.find(name); part != parts.end()) {
      CAIRN_ASSIGN_OR_RETURN(RunRows runs,
                             ParseRunRows(part->second.table, true, cluster, {}, options.program));
      fit.notes = std::move(runs.notes);
      fit.rows = std::move(runs.rows);
      fit.from = options.calibrate;
    }
  }
  if (!fit.rows.empty()) {
    CAIRN_ASSIGN_OR_RETURN(fit.calibration, Calibrate(fit.rows, cluster));
  } else {
    CAIRN_ASSIGN_OR_RETURN(fit.calibration, BuiltInCalibration(cluster, options.program));
    CAIRN_ASSIGN_OR_RETURN(fit.rows, BuiltInRuns(cluster.measured, options.program));
    if (cluster.measured.empty()) fit.from.clear();
  }
  return fit;
}

}  // namespace

Result<PredictedTable> PredictRows(const CsvTable& table, const PredictOptions& options) {
  std::vector<Prediction> predictions(table.rows.size());
  PredictedTable predicted;
  for (const auto& [name, part] : Split(table, options.cluster)) {
    CAIRN_ASSIGN_OR_RETURN(const Cluster cluster, ClusterOf(options, table, name));
    CAIRN_ASSIGN_OR_RETURN(ClusterFit fit, FitOf(options, name, cluster));
    CAIRN_ASSIGN_OR_RETURN(const RunRows asked,
                           ParseRunRows(part.table, false, cluster, fit.rows, options.program));
    fit.notes.insert(fit.notes.end(), asked.notes.begin(), asked.notes.end());
    for (size_t i = 0; i < part.rows.size(); ++i)
      predictions[part.rows[i]] = PredictRow(asked.rows[i], cluster, fit.calibration);
    predicted.fits.push_back(std::move(fit));
  }
  predicted.table = WithPredictions(table, predictions);
  return predicted;
}

}  // namespace cairn
