// Neither the planner nor the plain formulas see the group that they are judged by: both are fitted on the
// same other rows, so that the comparison is fair. Ranking asks what a user wants to know: of the
// configurations of the group, how many does the planner put before the one that was measured fastest?

#include "tests/bench/cross_validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "tools/plan/formulas.h"

namespace cairn {
namespace {

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// The plain formulas, with one constant each from the rows they may see.
class Plain {
 public:
  explicit Plain(const std::vector<RunRow>& rows) {
    std::vector<double> tflops, factors;
    for (const RunRow& row : rows) {
      if (row.seconds) tflops.push_back(Operations(row) / (*row.seconds * row.setup.gpus));
      if (row.memory_gb) factors.push_back(*row.memory_gb / StateGb(row));
    }
    speed_ = MedianOf(tflops);
    factor_ = MedianOf(factors);
  }
  double Seconds(const RunRow& row) const { return Operations(row) / (speed_ * row.setup.gpus); }
  double MemoryGb(const RunRow& row) const { return factor_ * StateGb(row); }

 private:
  static double Operations(const RunRow& row) {
    return SimpleTflops(row.shape.TotalParams(), row.shape.seq, row.setup.global_batch, 1, 1);
  }
  // 2 bytes of weights, 2 of gradients, 12 of optimizer a parameter, the last spread by ZeRO.
  static double StateGb(const RunRow& row) {
    const double copies = static_cast<double>(row.setup.tp) * row.setup.pp;
    return row.shape.TotalParams() / copies * (4 + 12.0 / (row.setup.zero > 0 ? row.setup.dp : 1)) / 1e9;
  }
  double speed_ = 1;
  double factor_ = 1;
};

// Where the configuration that was measured fastest comes in the predicted order.
void RankBest(const std::vector<std::pair<const RunRow*, double>>& predicted, HeldOut& held) {
  const auto key = [](const RunRow& r) {
    return std::tuple(r.shape.hidden, r.shape.layers, r.shape.heads, r.setup.gpus, r.setup.tp, r.setup.pp,
                      r.setup.dp, r.setup.micro_batch, r.setup.global_batch, r.setup.zero,
                      r.setup.first_layers, r.setup.last_layers);
  };
  struct Seen {
    double measured, predicted;
  };
  std::map<decltype(key(*predicted[0].first)), Seen> configurations;
  for (const auto& [row, seconds] : predicted) {
    const auto [at, fresh] = configurations.insert({key(*row), {*row->seconds, seconds}});
    if (!fresh) at->second.measured = std::min(at->second.measured, *row->seconds);
  }
  held.candidates = static_cast<int>(configurations.size());
  if (configurations.empty()) return;
  const auto best =
      std::min_element(configurations.begin(), configurations.end(),
                       [](const auto& a, const auto& b) { return a.second.measured < b.second.measured; });
  held.best_rank = 1;
  for (const auto& [_, seen] : configurations) held.best_rank += seen.predicted < best->second.predicted;
}

HeldOut Judge(const std::string& group, const std::vector<RunRow>& train, const std::vector<RunRow>& test,
              const Cluster& cluster, const Calibration& calibration) {
  const Plain plain(train);
  HeldOut held{group, test.size()};
  std::vector<std::pair<const RunRow*, double>> predicted;
  for (const RunRow& row : test) {
    const Prediction p = PredictRow(row, cluster, calibration);
    if (row.seconds) {
      held.time.Add(p.seconds.value, *row.seconds);
      held.plain_time.Add(plain.Seconds(row), *row.seconds);
      held.within_time += *row.seconds >= p.seconds.low && *row.seconds <= p.seconds.high;
      predicted.push_back({&row, p.seconds.value});
    }
    if (row.memory_gb) {
      held.memory.Add(p.memory_gb.value, *row.memory_gb);
      held.plain_memory.Add(plain.MemoryGb(row), *row.memory_gb);
      held.within_memory += *row.memory_gb >= p.memory_gb.low && *row.memory_gb <= p.memory_gb.high;
    }
    if (row.seconds || row.out_of_memory) {
      ++held.calls;
      held.right_calls += p.fits != row.out_of_memory;
    }
  }
  RankBest(predicted, held);
  return held;
}

std::string Percent(const Errors& errors, double (Errors::*which)() const) {
  return errors.all.empty() ? "-" : fmt::format("{:.1f} %", 100 * (errors.*which)());
}

std::string Share(int part, size_t whole) { return whole == 0 ? "-" : fmt::format("{}/{}", part, whole); }

}  // namespace

double Errors::Median() const { return MedianOf(all); }
double Errors::Worst() const { return all.empty() ? 0 : *std::max_element(all.begin(), all.end()); }
void Errors::Add(double predicted, double measured) { all.push_back(std::abs(predicted / measured - 1)); }

Result<std::vector<HeldOut>> CrossValidate(const std::vector<RunRow>& rows,
                                           const std::vector<std::string>& groups, const Cluster& cluster) {
  std::vector<std::string> order;
  for (const std::string& group : groups)
    if (std::find(order.begin(), order.end(), group) == order.end()) order.push_back(group);
  if (order.size() < 2) return InvalidArgument("all rows are of one group; there is nothing to leave out");
  std::vector<HeldOut> result;
  for (const std::string& group : order) {
    std::vector<RunRow> train, test;
    for (size_t i = 0; i < rows.size(); ++i) (groups[i] == group ? test : train).push_back(rows[i]);
    CAIRN_ASSIGN_OR_RETURN(const Calibration calibration, Calibrate(train, cluster));
    result.push_back(Judge(group, train, test, cluster, calibration));
  }
  return result;
}

HeldOut SumOf(const std::vector<HeldOut>& groups) {
  HeldOut sum{"all"};
  for (const HeldOut& g : groups) {
    sum.rows += g.rows;
    for (const auto errors : {&HeldOut::time, &HeldOut::memory, &HeldOut::plain_time, &HeldOut::plain_memory})
      (sum.*errors).all.insert((sum.*errors).all.end(), (g.*errors).all.begin(), (g.*errors).all.end());
    for (const auto count :
         {&HeldOut::within_time, &HeldOut::within_memory, &HeldOut::calls, &HeldOut::right_calls})
      sum.*count += g.*count;
  }
  return sum;
}

CsvTable ErrorTable(const std::vector<HeldOut>& groups) {
  CsvTable table{"errors"};
  table.header = {"left out",          "rows",
                  "sec/it median",     "worst",
                  "plain: median",     "worst (plain)",
                  "memory median",     "worst (mem)",
                  "plain mem: median", "worst (plain mem)",
                  "fits called",       "best ranked",
                  "sec/it in bounds",  "memory in bounds"};
  std::vector<HeldOut> lines = groups;
  lines.push_back(SumOf(groups));
  for (const HeldOut& g : lines) {
    CsvTable::Row row;
    row.cells = {g.group, fmt::format("{}", g.rows)};
    for (const Errors* errors : {&g.time, &g.plain_time, &g.memory, &g.plain_memory}) {
      row.cells.push_back(Percent(*errors, &Errors::Median));
      row.cells.push_back(Percent(*errors, &Errors::Worst));
    }
    row.cells.push_back(Share(g.right_calls, g.calls));
    row.cells.push_back(g.best_rank == 0 ? "-" : fmt::format("{} of {}", g.best_rank, g.candidates));
    row.cells.push_back(Share(g.within_time, g.time.all.size()));
    row.cells.push_back(Share(g.within_memory, g.memory.all.size()));
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace cairn
