// Constants are fitted as logarithms against priors, once for time and once for memory. The noise determines
// how strongly rows pull against priors, and the fit determines how much noise is left, so the two alternate
// for a few rounds. Then groups of rows are left out in turn, by table, by micro-batch and by number of
// stages; if the rows that were left out lie farther from their prediction than its bounds, all bounds are
// widened. Bounds are evaluated at both ends of each axis of the fit, because a constant that no row
// determines may be far from its value.

#include "tools/plan/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "plan_texts.h"
#include "tools/plan/formulas.h"
#include "tools/plan/least_squares.h"

namespace cairn {
namespace {

constexpr double kTimeNoise = 0.03;    // relative; the difference of equal runs in the first tables
constexpr double kTimeMisfit = 0.055;  // the error on runs that the model was not fitted on
constexpr double kMemoryNoise = 0.04;  // the same; memory is rounded to GB there
constexpr double kUsualRows = 5;       // rows that weigh as much as the usual noise
constexpr int kNoiseRounds = 4;
constexpr double kSameNoise = 0.02;       // a relative change that ends the rounds
constexpr double kNinetyPercent = 1.645;  // standard deviations either side
constexpr size_t kLeastGroups = 3;        // to learn by leaving each out
constexpr size_t kMostGroups = 100;       // each costs a fit
constexpr char kMemoryMeasuredAt[] = "jean-zay";
constexpr double kLeastUsable = 0.9;
constexpr double kMostUsable = 1.05;  // the allocator gives cached memory back before it fails

template <typename Constants>
Constants FromLogs(const std::vector<double>& x, std::span<const ConstantInfo<Constants>> infos) {
  Constants constants;
  for (size_t i = 0; i < infos.size(); ++i) constants.*infos[i].field = std::exp(x[i]);
  return constants;
}

template <typename Constants>
std::vector<double> ToLogs(const Constants& constants, std::span<const ConstantInfo<Constants>> infos) {
  std::vector<double> x;
  for (const auto& info : infos) x.push_back(std::log(constants.*info.field));
  return x;
}

// Robust standard deviation: 1.4826 times the median of the absolute residuals.
double Scale(std::vector<double> residuals) {
  if (residuals.empty()) return 0;
  for (double& r : residuals) r = std::abs(r);
  const auto middle = residuals.begin() + residuals.size() / 2;
  std::nth_element(residuals.begin(), middle, residuals.end());
  return 1.4826 * *middle;
}

// How many constants the measurements decided, as against their priors: 0 to their number.
double DecidedConstants(const Fit& fit, const std::vector<Prior>& priors) {
  double decided = 0;
  for (size_t i = 0; i < priors.size(); ++i)
    decided += std::max(0.0, 1 - fit.variance[i] / (priors[i].spread * priors[i].spread));
  return decided;
}

// The noise in the residuals (in units of `noise`), drawn to the `usual` as by kUsualRows rows with it; never
// below the `least`, because no constant can explain the differences of equal runs. A constant that follows
// the rows makes residuals small, and therefore takes one row away (MacKay, "Bayesian Interpolation", 1992).
double NoiseOf(std::vector<double> residuals, const std::vector<double>& weights, double decided,
               double noise, double usual, double least) {
  const double rows = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double seen = noise * Scale(std::move(residuals));
  const double free = kUsualRows + std::max(0.0, rows - decided);
  return std::max(least, std::sqrt((kUsualRows * usual * usual + rows * seen * seen) / free));
}

// `measured` and `predict(constants, i)`, of row i, are the same quantity. How strongly the rows pull against
// the priors depends on their noise, and the noise on the residuals of the fit: each in turn, a few times.
template <typename Constants, typename Predict>
Result<FittedConstants<Constants>> FitTo(const std::vector<const RunRow*>& rows,
                                         std::optional<double> RunRow::*measured,
                                         std::span<const ConstantInfo<Constants>> infos, double usual_noise,
                                         double least_noise, const Predict& predict) {
  std::vector<Prior> priors;
  for (const auto& info : infos) priors.push_back({std::log(info.mean), info.spread});
  double noise = usual_noise;
  const auto residuals = [&](const std::vector<double>& x, std::vector<double>& out) {
    const Constants constants = FromLogs(x, infos);
    for (size_t i = 0; i < rows.size(); ++i)
      out[i] = std::log(predict(constants, i) / *(rows[i]->*measured)) / noise;
  };
  const std::vector<double> weights = rows.empty() ? std::vector<double>() : RowWeights(rows);
  Fit fit;
  for (int round = 0; round < kNoiseRounds; ++round) {
    CAIRN_ASSIGN_OR_RETURN(fit, FitRobust(priors, weights, residuals));
    if (rows.empty()) break;
    std::vector<double> left(rows.size());
    residuals(fit.x, left);
    const double before = noise;
    noise = NoiseOf(std::move(left), weights, DecidedConstants(fit, priors), noise, usual_noise, least_noise);
    if (std::abs(noise / before - 1) < kSameNoise) break;
  }
  FittedConstants<Constants> fitted{FromLogs(fit.x, infos), fit.axes};
  fitted.noise = noise;
  fitted.rows = static_cast<int>(rows.size());
  return fitted;
}

std::vector<const RunRow*> With(const std::vector<RunRow>& rows, std::optional<double> RunRow::*measured) {
  std::vector<const RunRow*> with;
  for (const RunRow& row : rows)
    if (row.*measured) with.push_back(&row);
  return with;
}

// One for each micro-batch that the row may have had.
std::vector<IterationWork> WorksOf(const RunRow& row, const Cluster& cluster) {
  std::vector<IterationWork> works;
  RunSetup setup = row.setup;
  for (const int64_t size : row.micro_batches) {
    setup.micro_batch = size;
    works.push_back(WorkOf(row.shape, setup, cluster));
  }
  if (works.empty()) works.push_back(WorkOf(row.shape, setup, cluster));
  return works;
}

// The fastest of them: its time and its micro-batch.
std::pair<double, int64_t> FastestOf(const std::vector<IterationWork>& works,
                                     const TimeConstants& constants) {
  std::pair<double, int64_t> best{INFINITY, 1};
  for (const IterationWork& work : works)
    best = std::min(best, std::pair(TimeOf(work, constants).Total(), work.setup.micro_batch));
  return best;
}
double MemoryGb(const RunRow& row, const MemoryConstants& constants) {
  return MemoryOf(row.shape, row.setup, constants).Peak();
}

// The share of memory that is right for most rows; among equal ones the nearest to 1.
double Usable(const std::vector<RunRow>& rows, const Cluster& cluster, const MemoryConstants& constants) {
  double best = 1;
  size_t least_wrong = SIZE_MAX;
  for (double offset = 0; offset <= 0.1 + 1e-9; offset += 0.005) {
    for (const double share : {1 - offset, 1 + offset}) {
      if (share < kLeastUsable || share > kMostUsable) continue;
      size_t wrong = 0;
      for (const RunRow& row : rows) {
        if (!row.memory_gb && !row.out_of_memory) continue;
        const bool fits = MemoryGb(row, constants) <= share * cluster.memory_gb;
        wrong += fits == row.out_of_memory;
      }
      if (wrong < least_wrong) least_wrong = wrong, best = share;
    }
  }
  return best;
}

// The value at the constants, and its bounds: from its values at the ends of each axis of the constants'
// uncertainty. A slope is not enough: a delay that no row shows has a small prior, and may still be ten times
// as long.
template <typename Constants, typename Value>
Estimate Bounds(const FittedConstants<Constants>& fitted, std::span<const ConstantInfo<Constants>> infos,
                const Value& value) {
  const std::vector<double> x = ToLogs(fitted.constants, infos);
  const double middle = value(fitted.constants);
  double above = std::pow(kNinetyPercent * fitted.noise, 2), below = above;
  for (const std::vector<double>& axis : fitted.axes) {
    double up = 0, down = 0;
    for (const double side : {-kNinetyPercent, kNinetyPercent}) {
      std::vector<double> end = x;
      for (size_t i = 0; i < x.size(); ++i) end[i] += side * axis[i];
      const double moved = std::log(value(FromLogs(end, infos)) / middle);
      up = std::max(up, moved);
      down = std::max(down, -moved);
    }
    above += up * up;
    below += down * down;
  }
  return {middle, middle * std::exp(-fitted.widen * std::sqrt(below)),
          middle * std::exp(fitted.widen * std::sqrt(above))};
}

// No mixture of experts is among the fitted runs. Twice as wide, the bounds hold all seven published runs of
// tests/tools/plan/mixtures_test.cc.
constexpr double kMixtureWidening = 2;

template <typename Constants>
FittedConstants<Constants> WidenedFor(const ModelShape& shape, FittedConstants<Constants> fitted) {
  if (shape.experts > 0) fitted.widen *= kMixtureWidening;
  return fitted;
}

double Normal(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

Result<Calibration> FitRows(const std::vector<RunRow>& rows, const Cluster& cluster) {
  Calibration calibration;
  const std::vector<const RunRow*> timed = With(rows, &RunRow::seconds);
  std::vector<std::vector<IterationWork>> works;
  for (const RunRow* row : timed) works.push_back(WorksOf(*row, cluster));
  CAIRN_ASSIGN_OR_RETURN(
      calibration.time,
      FitTo(timed, &RunRow::seconds, TimeConstantInfos(cluster.cpu), kTimeMisfit, kTimeNoise,
            [&](const TimeConstants& c, size_t i) { return FastestOf(works[i], c).first; }));
  const std::vector<const RunRow*> weighed = With(rows, &RunRow::memory_gb);
  CAIRN_ASSIGN_OR_RETURN(calibration.memory,
                         FitTo(weighed, &RunRow::memory_gb, MemoryConstantInfos(), kMemoryNoise, kMemoryNoise,
                               [&](const MemoryConstants& c, size_t i) { return MemoryGb(*weighed[i], c); }));
  return calibration;
}

// How far a measurement lies from its prediction, against the bound on its side.
double Distance(const Estimate& estimate, double measured) {
  const double end = measured > estimate.value ? estimate.high : estimate.low;
  return std::log(measured / estimate.value) / std::log(end / estimate.value);
}

// The factor that brings 9 of 10 distances within 1; wider if there were few groups, as Student's t is wider
// than the normal distribution (Cornish and Fisher's expansion).
double Widening(std::vector<double> distances, size_t groups) {
  if (distances.empty()) return 1;
  const auto ninth = distances.begin() + (distances.size() * 9) / 10;
  std::nth_element(distances.begin(), ninth, distances.end());
  const double free = static_cast<double>(groups) - 1, z = kNinetyPercent;
  const double few =
      1 + (z * z + 1) / (4 * free) + (5 * std::pow(z, 4) + 16 * z * z + 3) / (96 * free * free);
  return std::max(1.0, *ninth * few);
}

struct Distances {
  size_t groups = 0;
  std::vector<double> seconds, memory;
};

// Leaves each group of rows out in turn, and compares its measurements with the predictions of the others.
Result<Distances> LeaveOut(const std::vector<RunRow>& rows, const Cluster& cluster,
                           std::string (*group_of)(const RunRow&)) {
  std::set<std::string> groups;
  for (const RunRow& row : rows) groups.insert(group_of(row));
  Distances distances{groups.size()};
  if (groups.size() < kLeastGroups || groups.size() > kMostGroups) return distances;
  for (const std::string& group : groups) {
    std::vector<RunRow> others;
    for (const RunRow& row : rows)
      if (group_of(row) != group) others.push_back(row);
    CAIRN_ASSIGN_OR_RETURN(const Calibration without, FitRows(others, cluster));
    for (const RunRow& row : rows) {
      if (group_of(row) != group) continue;
      const Prediction p = PredictRow(row, cluster, without);
      if (row.seconds) distances.seconds.push_back(Distance(p.seconds, *row.seconds));
      if (row.memory_gb) distances.memory.push_back(Distance(p.memory_gb, *row.memory_gb));
    }
  }
  return distances;
}

Status Widen(const std::vector<RunRow>& rows, const Cluster& cluster, Calibration& calibration) {
  using GroupOf = std::string (*)(const RunRow&);
  constexpr GroupOf kSplits[] = {
      [](const RunRow& row) { return row.group; },
      [](const RunRow& row) { return std::to_string(row.setup.micro_batch); },
      [](const RunRow& row) { return std::to_string(row.setup.pp); },
  };
  for (const GroupOf split : kSplits) {
    CAIRN_ASSIGN_OR_RETURN(Distances distances, LeaveOut(rows, cluster, split));
    calibration.time.widen =
        std::max(calibration.time.widen, Widening(std::move(distances.seconds), distances.groups));
    calibration.memory.widen =
        std::max(calibration.memory.widen, Widening(std::move(distances.memory), distances.groups));
  }
  return OkStatus();
}

}  // namespace

std::vector<double> RowWeights(const std::vector<const RunRow*>& rows) {
  const auto key = [](const RunRow& r) { return std::pair(r.shape, r.setup); };
  std::map<decltype(key(*rows[0])), int> counts;
  for (const RunRow* row : rows) ++counts[key(*row)];
  std::vector<double> weights;
  for (const RunRow* row : rows) weights.push_back(1.0 / counts[key(*row)]);
  return weights;
}

Result<Calibration> Calibrate(const std::vector<RunRow>& rows, const Cluster& cluster) {
  CAIRN_ASSIGN_OR_RETURN(Calibration calibration, FitRows(rows, cluster));
  calibration.usable = Usable(rows, cluster, calibration.memory.constants);
  CAIRN_RETURN_IF_ERROR(Widen(rows, cluster, calibration));
  return calibration;
}

Result<std::vector<RunRow>> BuiltInRuns(const std::string& place, Program program) {
  for (const auto& [cluster_name, csv] : {std::pair{"jean-zay", kA100_runsText},
                                          {"selene", kSelene_runsText},
                                          {"nvidia-h100", kH100_runsText}}) {
    if (place != cluster_name) continue;
    CAIRN_ASSIGN_OR_RETURN(const CsvTable table, ParseCsv(csv, fmt::format("built-in runs of {}", place)));
    CAIRN_ASSIGN_OR_RETURN(const Cluster cluster, FindCluster(place));
    CAIRN_ASSIGN_OR_RETURN(RunRows runs, ParseRunRows(table, true, cluster, {}, program));
    return std::move(runs.rows);
  }
  return std::vector<RunRow>();
}

Result<Calibration> BuiltInCalibration(const Cluster& cluster, Program program) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<RunRow> rows, BuiltInRuns(cluster.measured, program));
  const bool believed_only = program == Program::kMegatronLm;
  // A program holds the same memory on every cluster; Megatron-DeepSpeed's was measured on Jean Zay.
  if (cluster.measured == kMemoryMeasuredAt && !believed_only) return Calibrate(rows, cluster);
  CAIRN_ASSIGN_OR_RETURN(Calibration calibration, Calibrate(rows, cluster));
  if (believed_only || cluster.cpu) return calibration;
  CAIRN_ASSIGN_OR_RETURN(const Cluster measured, FindCluster(kMemoryMeasuredAt));
  CAIRN_ASSIGN_OR_RETURN(std::vector<RunRow> memories, BuiltInRuns(kMemoryMeasuredAt, program));
  for (RunRow& row : memories) row.seconds.reset();  // fitting times costs most
  CAIRN_ASSIGN_OR_RETURN(const Calibration of_program, Calibrate(memories, measured));
  calibration.memory = of_program.memory;
  calibration.usable = of_program.usable;
  return calibration;
}

Prediction PredictRow(const RunRow& row, const Cluster& cluster, const Calibration& calibration) {
  RunSetup setup = row.setup;
  setup.micro_batch = FastestOf(WorksOf(row, cluster), calibration.time.constants).second;
  return Predict(row.shape, setup, cluster, calibration);
}

Prediction Predict(const ModelShape& shape, const RunSetup& setup, const Cluster& cluster,
                   const Calibration& calibration) {
  Prediction prediction;
  const IterationWork work = WorkOf(shape, setup, cluster);
  prediction.time = TimeOf(work, calibration.time.constants);
  prediction.memory = MemoryOf(shape, setup, calibration.memory.constants);
  prediction.seconds = Bounds(WidenedFor(shape, calibration.time), TimeConstantInfos(),
                              [&](const TimeConstants& c) { return TimeOf(work, c).Total(); });
  prediction.memory_gb = Bounds(WidenedFor(shape, calibration.memory), MemoryConstantInfos(),
                                [&](const MemoryConstants& c) { return MemoryOf(shape, setup, c).Peak(); });
  const double limit = calibration.usable * cluster.memory_gb;
  const double end =
      limit > prediction.memory_gb.value ? prediction.memory_gb.high : prediction.memory_gb.low;
  const double deviation = std::abs(std::log(end / prediction.memory_gb.value)) / kNinetyPercent;
  prediction.fits = prediction.memory_gb.value <= limit;
  prediction.fit_probability = Normal(std::log(limit / prediction.memory_gb.value) / deviation);
  prediction.tflops = MegatronTflops(shape, setup.tp, setup.global_batch, prediction.seconds.value,
                                     setup.gpus, setup.recompute);
  prediction.model_tflops =
      ModelTflops(shape, setup.tp, setup.global_batch, prediction.seconds.value, setup.gpus);
  return prediction;
}

}  // namespace cairn
