// Runs become panels, one for each y. Panels become one text for gnuplot, with the data in it. A long curve
// is thinned by averaging neighbours, to the points that a picture can show. Panels are placed one by one,
// because the last one also needs room for the key below it.

#include "tools/report/plot.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "ckpt/base/child.h"
#include "tools/cli/printable.h"
#include "tools/report/config_name.h"
#include "tools/report/numbers.h"

namespace cairn {
namespace {

constexpr size_t kMaxPoints = 2000;  // a curve; more than a picture can show
constexpr int kWidth = 1000;
constexpr size_t kPanelHeight = 320;
constexpr size_t kKeyRowHeight = 22;  // of three names
// Distinguishable with colour blindness, too (Okabe and Ito).
constexpr const char* kColours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                    "#E69F00", "#56B4E9", "#000000", "#999999"};

struct Point {
  double x, y;
};

struct Curve {
  std::string name;
  size_t run = 0;  // its colour in all panels
  std::vector<Point> points;
};

struct Panel {
  std::string label;
  std::vector<Curve> curves;
};

double LossOf(const Sample& sample, const RunSummary&) { return sample.loss; }
double SecondsOf(const Sample& sample, const RunSummary&) { return sample.seconds; }
double GradNormOf(const Sample& sample, const RunSummary&) { return sample.grad_norm; }
// The run's TFLOPs are those of its mean time and batch.
double TflopsOf(const Sample& sample, const RunSummary& run) {
  if (!run.tflops || !run.sec_per_it || !(sample.seconds > 0)) return kNoNumber;
  const double batch = sample.global_batch > 0 && run.samples_per_s
                           ? sample.global_batch / (*run.samples_per_s * *run.sec_per_it)
                           : 1;
  return *run.tflops * *run.sec_per_it / sample.seconds * batch;
}

struct Quantity {
  std::string_view key;
  std::string_view label;
  double (*of)(const Sample&, const RunSummary&);
};
constexpr Quantity kQuantities[] = {{"loss", "loss", LossOf},
                                    {"sec_per_it", "seconds an iteration", SecondsOf},
                                    {"tflops", "TFLOPs a GPU", TflopsOf},
                                    {"grad_norm", "gradient norm", GradNormOf}};

Curve CurveOf(const RunSummary& run, size_t number, const Quantity& quantity) {
  Curve curve{.name = std::string(StemOf(run.file)), .run = number, .points = {}};
  const size_t step = (run.samples.size() + kMaxPoints - 1) / kMaxPoints;
  for (size_t i = 0; i < run.samples.size(); i += step) {
    double sum = 0, count = 0;
    for (size_t k = i; k < std::min(i + step, run.samples.size()); ++k) {
      const double y = quantity.of(run.samples[k], run);
      if (!std::isfinite(y)) continue;
      sum += y;
      ++count;
    }
    if (count > 0) curve.points.push_back({static_cast<double>(run.samples[i].iteration), sum / count});
  }
  return curve;
}

Result<std::vector<Panel>> IterationPanels(const std::vector<RunSummary>& runs,
                                           std::vector<std::string> names) {
  if (names.empty()) names = {"loss", "sec_per_it", "tflops"};
  std::vector<Panel> panels;
  for (const std::string& name : names) {
    const auto quantity =
        std::ranges::find_if(kQuantities, [&](const Quantity& q) { return SameWord(q.key, name); });
    if (quantity == std::end(kQuantities))
      return InvalidArgument("--y {}: against iterations it must be loss, sec_per_it, tflops or grad_norm",
                             name);
    Panel panel{.label = std::string(quantity->label), .curves = {}};
    for (size_t i = 0; i < runs.size(); ++i)
      if (Curve curve = CurveOf(runs[i], i, *quantity); !curve.points.empty())
        panel.curves.push_back(std::move(curve));
    if (!panel.curves.empty()) panels.push_back(std::move(panel));
  }
  return panels;
}

// All runs as points, and a line through the best of each x.
Panel SweepPanel(const std::vector<RunSummary>& runs, const ReportColumn& x, const ReportColumn& y) {
  const bool more_is_better = y.key.starts_with("tflops") || y.key.ends_with("per_s");
  Curve all{.name = "runs", .points = {}}, best{.name = "best", .points = {}};
  std::map<double, double> best_at;
  for (const RunSummary& run : runs) {
    const auto at = x.number(run), value = y.number(run);
    if (!at || !value || !std::isfinite(*value)) continue;
    all.points.push_back({*at, *value});
    const auto [place, fresh] = best_at.emplace(*at, *value);
    if (!fresh)
      place->second = more_is_better ? std::max(place->second, *value) : std::min(place->second, *value);
  }
  for (const auto& [at, value] : best_at) best.points.push_back({at, value});
  return {std::string(y.heading), {std::move(best), std::move(all)}};
}

Result<std::vector<Panel>> SweepPanels(const std::vector<RunSummary>& runs, const PlotOptions& options) {
  const std::vector<std::string> names =
      options.y.empty() ? std::vector<std::string>{"sec_per_it", "tflops"} : options.y;
  CAIRN_ASSIGN_OR_RETURN(const ColumnList x, FindColumns({options.x}));
  CAIRN_ASSIGN_OR_RETURN(const ColumnList columns, FindColumns(names));
  std::vector<Panel> panels;
  for (const ReportColumn* y : columns) {
    if (!x[0]->number || !y->number)
      return InvalidArgument("{} against {}: both must be numbers", y->key, x[0]->key);
    if (Panel panel = SweepPanel(runs, *x[0], *y); !panel.curves[0].points.empty())
      panels.push_back(std::move(panel));
  }
  return panels;
}

// A slow first iteration must not squeeze all others to a line at the bottom; a sweep shows slow runs.
std::string Range(const Panel& panel, bool sweep) {
  std::vector<double> values;
  for (const Curve& curve : panel.curves)
    for (const Point& point : curve.points) values.push_back(point.y);
  std::ranges::sort(values);
  const double low = values.front(), high = values.back(), usual = values[(values.size() - 1) * 98 / 100];
  double top = !sweep && values.size() > 20 && high - low > 2 * (usual - low) && usual > low
                   ? usual + (usual - low) * 0.3
                   : high;
  const double margin = std::max((top - low) * 0.08, std::abs(top) * 1e-3 + 1e-12);
  return fmt::format("set yrange [{}:{}]\n", low - margin, top + margin);
}

std::string DataBlocks(const std::vector<Panel>& panels) {
  std::string text;
  for (size_t p = 0; p < panels.size(); ++p) {
    for (size_t c = 0; c < panels[p].curves.size(); ++c) {
      text += fmt::format("$data_{}_{} << END\n", p, c);
      for (const Point& point : panels[p].curves[c].points) text += fmt::format("{} {}\n", point.x, point.y);
      text += "END\n";
    }
  }
  return text;
}

// Runs beyond the number of colours are dashed, differently in each round.
size_t DashOf(size_t run) { return 1 + run / std::size(kColours) % 5; }

// In double quotes, without the characters that gnuplot would interpret.
std::string GnuplotString(std::string_view text) {
  std::string out = "\"";
  for (const char c : Printable(std::string(text), Lines::kOne))
    if (c != '"' && c != '\\' && c != '`') out += c;
  return out + '"';
}

std::string CurveCommands(const std::vector<Panel>& panels, size_t p, bool sweep) {
  std::string text;
  const auto& curves = panels[p].curves;
  for (size_t c = 0; c < curves.size(); ++c) {
    const bool dots = sweep ? c == 1 : curves[c].points.size() <= 60;
    const bool line = !sweep || c == 0;
    const std::string style =
        !line ? "points" : fmt::format("{} dt {}", dots ? "linespoints" : "lines", DashOf(curves[c].run));
    text += fmt::format("{} $data_{}_{} using 1:2 with {} lc rgb '{}' lw 1.6 pt 7 ps {} title {} noenhanced",
                        c ? "," : "plot", p, c, style, kColours[curves[c].run % std::size(kColours)],
                        sweep ? 0.9 : 0.5, GnuplotString(curves[c].name));
  }
  return text + "\n";
}

// A sweep has few places: the axis names them.
std::string SweepTics(const std::vector<Panel>& panels) {
  std::set<double> places;
  for (const Panel& panel : panels)
    for (const Point& point : panel.curves[0].points) places.insert(point.x);
  if (places.size() > 16) return "";
  std::string tics;
  for (const double place : places) tics += fmt::format("{}{}", tics.empty() ? "" : ", ", place);
  const double low = *places.begin(), high = *places.rbegin();
  const bool wide = places.size() > 2 && low > 0 && high / low >= 8;
  const double margin = wide ? 0 : std::max((high - low) * 0.05, std::abs(high) * 0.05 + 1e-9);
  return fmt::format("{}set xtics ({})\nset xrange [{}:{}]\n", wide ? "set logscale x 2\n" : "", tics,
                     wide ? low / 1.2 : low - margin, wide ? high * 1.2 : high + margin);
}

size_t CurvesOf(const Panel& panel) { return panel.curves.size(); }

std::string XLabel(const std::string& x) {
  const Result<ColumnList> column = FindColumns({x});
  return column.ok() ? std::string((*column)[0]->heading) : x;
}

// gnuplot echoes the command before its error.
std::string Complaint(const std::string& text) {
  size_t at = text.find("line ");
  if (at == text.npos) at = 0;
  return text.substr(at, text.find('\n', at) - at).substr(0, 200);
}

}  // namespace

Result<PlotType> PlotTypeOf(const std::string& path) {
  if (path.ends_with(".png")) return PlotType::kPng;
  if (path.ends_with(".svg")) return PlotType::kSvg;
  return InvalidArgument("{}: the name of a plot must end in .png or .svg", path);
}

Result<std::string> PlotCommands(const std::vector<RunSummary>& runs, const PlotOptions& options,
                                 PlotType type) {
  const bool sweep = !SameWord(options.x, "iteration");
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Panel> panels,
                         sweep ? SweepPanels(runs, options) : IterationPanels(runs, options.y));
  if (panels.empty()) return InvalidArgument("nothing to plot: no run has {} and a value for it", options.x);
  const size_t names = sweep ? 0 : std::ranges::max_element(panels, {}, CurvesOf)->curves.size();
  const size_t key_height = names > 1 ? (names + 2) / 3 * kKeyRowHeight : 0;
  const size_t height = panels.size() * kPanelHeight + key_height;
  std::string text = fmt::format("set terminal {} size {},{} font 'DejaVu Sans,11' background rgb 'white'\n",
                                 type == PlotType::kPng ? "pngcairo" : "svg dynamic", kWidth, height);
  text += DataBlocks(panels);
  text +=
      "set grid lt 1 lc rgb '#d8d8d8' lw 0.7\nset border 3\nset tics nomirror\nset lmargin 12\nset rmargin "
      "3\nunset key\n";
  if (sweep) text += SweepTics(panels);
  text += "set multiplot\n";
  for (size_t p = 0; p < panels.size(); ++p) {
    const bool last = p + 1 == panels.size();
    const auto total = static_cast<double>(height);
    const size_t bottom = last ? 0 : height - (p + 1) * kPanelHeight;
    text += fmt::format("set origin 0,{}\nset size 1,{}\n", static_cast<double>(bottom) / total,
                        static_cast<double>(kPanelHeight + (last ? key_height : 0)) / total);
    text += fmt::format("set ylabel {} noenhanced\n", GnuplotString(panels[p].label));
    if (last) text += fmt::format("set xlabel {} noenhanced\n", GnuplotString(XLabel(options.x)));
    if (last && key_height > 0) text += "set key below maxcols 3\n";
    text += Range(panels[p], sweep) + CurveCommands(panels, p, sweep);
  }
  return text + "unset multiplot\n";
}

Result<std::string> Plot(const std::vector<RunSummary>& runs, const PlotOptions& options,
                         const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const PlotType type, PlotTypeOf(path));
  CAIRN_ASSIGN_OR_RETURN(const std::string commands, PlotCommands(runs, options, type));
  Result<ChildOutcome> outcome = RunChild({"gnuplot"}, commands);
  if (!outcome.ok() && outcome.status().kind() == StatusKind::kNotFound)
    return NotFound("plots need gnuplot, which is not installed: apt install gnuplot-nox");
  if (!outcome.ok()) return outcome.status();
  if (outcome->exit != 0) return IoError("gnuplot failed: {}", Complaint(outcome->err));
  return std::move(outcome->out);
}

}  // namespace cairn
