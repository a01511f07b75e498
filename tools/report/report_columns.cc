// The file is one table, kColumns: every form of a report (tables, CSV, JSON, plots) takes its columns
// from it. Most columns are a member of RunSummary or of one of its parts, so a template over pointers to
// members makes their functions. Below the table are the selections of columns, cells and sorting.

#include "tools/report/report_columns.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "tools/cli/printable.h"
#include "tools/report/config_name.h"
#include "tools/report/numbers.h"

namespace cairn {
namespace {

using Number = std::optional<double>;

Number ToNumber(std::optional<double> value) { return value; }
Number ToNumber(double value) { return std::isnan(value) ? std::nullopt : Number(value); }
Number ToNumber(int64_t value) { return value < 0 ? std::nullopt : Number(static_cast<double>(value)); }
Number ToNumber(std::optional<int64_t> value) { return ToNumber(value.value_or(-1)); }

// The member that the pointers lead to; a whole number below 0 is unknown, and so is NaN.
template <auto... members>
Number At(const RunSummary& run) {
  return ToNumber((run.*....*members));
}

std::string TwoDigits(double value) {
  return value < 1 ? fmt::format("{:.4f}", value) : fmt::format("{:.2f}", value);
}
std::string OneDigit(double value) { return fmt::format("{:.1f}", value); }
std::string Gigabytes(double value) { return fmt::format("{:.1f}GB", value); }
std::string FourFigures(double value) { return fmt::format("{:.4g}", value); }
std::string Rounded(double value) {
  return value < 10 ? fmt::format("{:.2f}", value) : fmt::format("{:.0f}", value);
}

Number Positive(double value) { return value > 0 ? Number(value) : std::nullopt; }
Number AllocatedOf(const RunSummary& run) { return Positive(run.sum.allocated_gib); }
Number ReservedOf(const RunSummary& run) { return Positive(run.sum.reserved_gib); }
Number MemoryOf(const RunSummary& run) {
  return run.sum.reserved_gib > 0 ? ReservedOf(run) : AllocatedOf(run);
}
Number SizeOf(const RunSummary& run) { return run.parameters ? Number(*run.parameters / 1e9) : std::nullopt; }
std::string SizeOfBillions(double billions) { return SizeText(billions * 1e9); }

// The sum over all GPUs.
Number PflopsOf(const RunSummary& run) {
  if (!run.tflops || !run.config.gpus) return std::nullopt;
  return *run.tflops * static_cast<double>(*run.config.gpus) / 1e3;
}

std::string StatusOf(const RunSummary& run) { return std::string(Name(run.end)); }
std::string CauseOf(const RunSummary& run) { return run.cause; }
std::string FileOf(const RunSummary& run) { return run.file; }
std::string NameOf(const RunSummary& run) { return std::string(StemOf(run.file)); }
std::string PrecisionOf(const RunSummary& run) { return run.config.precision.value_or(""); }
std::string CauseTextOf(const RunSummary& run) { return run.failure ? run.failure->text : ""; }
Number CauseLineOf(const RunSummary& run) {
  return run.failure ? Number(static_cast<double>(run.failure->line)) : std::nullopt;
}
Number LostOf(const RunSummary& run) { return run.redone_seconds + run.gap_seconds; }

// "name; fail: out of memory, line 12; 2 restarts"
std::string NotesOf(const RunSummary& run) {
  std::string notes = NameOf(run);
  if (!run.ok()) notes += fmt::format("; {}: {}", Name(run.end), run.cause);
  if (run.failure) notes += fmt::format(" (line {})", run.failure->line);
  if (run.starts > 1) notes += fmt::format("; {} restart{}", run.starts - 1, run.starts == 2 ? "" : "s");
  if (run.nans > 0) notes += fmt::format("; {} NaN", run.nans);
  return notes;
}

constexpr ReportColumn kColumns[] = {
    {"file", "File", nullptr, nullptr, FileOf},
    {"name", "Name", nullptr, nullptr, NameOf},
    {"status", "Status", nullptr, nullptr, StatusOf},
    {"cause", "Cause", nullptr, nullptr, CauseOf},
    {"cause_line", "Line", CauseLineOf},
    {"cause_text", "Says", nullptr, nullptr, CauseTextOf},
    {"gpus", "GPUs", At<&RunSummary::config, &RunConfig::gpus>},
    {"size_b", "Size", SizeOf, SizeOfBillions},
    {"dp", "DP", At<&RunSummary::config, &RunConfig::dp>},
    {"tp", "TP", At<&RunSummary::config, &RunConfig::tp>},
    {"pp", "PP", At<&RunSummary::config, &RunConfig::pp>},
    {"cp", "CP", At<&RunSummary::config, &RunConfig::cp>},
    {"zero", "ZeRO", At<&RunSummary::config, &RunConfig::zero>},
    {"gas", "GAS", At<&RunSummary::config, &RunConfig::gas>},
    {"mbs", "MBS", At<&RunSummary::config, &RunConfig::mbs>},
    {"gbs", "GBS", At<&RunSummary::config, &RunConfig::gbs>},
    {"layers", "Layers", At<&RunSummary::config, &RunConfig::layers>},
    {"hidden", "Hidden", At<&RunSummary::config, &RunConfig::hidden>},
    {"heads", "Heads", At<&RunSummary::config, &RunConfig::heads>},
    {"seq", "Seq", At<&RunSummary::config, &RunConfig::seq>},
    {"vocab", "Vocab", At<&RunSummary::config, &RunConfig::vocab>},
    {"precision", "Type", nullptr, nullptr, PrecisionOf},
    {"mem_gb", "Mem", MemoryOf, Gigabytes},
    {"allocated_gb", "Allocated", AllocatedOf, Gigabytes},
    {"reserved_gb", "Reserved", ReservedOf, Gigabytes},
    {"iterations", "Iterations", At<&RunSummary::iterations>},
    {"first_iteration", "First", At<&RunSummary::first_iteration>},
    {"last_iteration", "Last", At<&RunSummary::last_iteration>},
    {"total_iterations", "Of", At<&RunSummary::sum, &TrainingStart::total>},
    {"sec_per_it", "Sec/it", At<&RunSummary::sec_per_it>, TwoDigits},
    {"sec_per_it_skip1", "Sec/it (1 left out)", At<&RunSummary::sec_per_it_skip1>, TwoDigits},
    {"sec_per_it_skip2", "Sec/it (2 left out)", At<&RunSummary::sec_per_it_skip2>, TwoDigits},
    {"sec_per_it_median", "Median", At<&RunSummary::median>, TwoDigits},
    {"sec_per_it_stdev", "±", At<&RunSummary::deviation>, TwoDigits},
    {"sec_per_it_min", "Fastest", At<&RunSummary::fastest>, TwoDigits},
    {"sec_per_it_max", "Slowest", At<&RunSummary::slowest>, TwoDigits},
    {"outliers", "Outliers", At<&RunSummary::outliers>},
    {"tflops", "TFLOPs", At<&RunSummary::tflops>, TwoDigits},
    {"tflops_simple", "TFLOPs (simple)", At<&RunSummary::formulas, &FormulaTflops::simple>, TwoDigits},
    {"tflops_megatron", "TFLOPs (Megatron)", At<&RunSummary::formulas, &FormulaTflops::megatron>, TwoDigits},
    {"tflops_model", "TFLOPs (model)", At<&RunSummary::formulas, &FormulaTflops::model>, TwoDigits},
    {"tflops_logged", "TFLOPs (logged)", At<&RunSummary::tflops_logged>, TwoDigits},
    {"pflops", "PFLOPs", PflopsOf, TwoDigits},
    {"samples_per_s", "Samples/s", At<&RunSummary::samples_per_s>, Rounded},
    {"tokens_per_s", "Tokens/s", At<&RunSummary::tokens_per_s>, Rounded},
    {"loss", "Loss", At<&RunSummary::loss>, FourFigures},
    {"grad_norm", "Grad norm", At<&RunSummary::sum, &TrainingStart::last_grad_norm>, FourFigures},
    {"validation_loss", "Validation loss", At<&RunSummary::sum, &TrainingStart::validation_loss>,
     FourFigures},
    {"skipped_iterations", "Skipped", At<&RunSummary::skipped>},
    {"nan_iterations", "NaN", At<&RunSummary::nans>},
    {"checkpoints", "Checkpoints", At<&RunSummary::sum, &TrainingStart::checkpoints>},
    {"checkpoint_seconds", "Stall", At<&RunSummary::sum, &TrainingStart::checkpoint_seconds>, OneDigit},
    {"longest_checkpoint_seconds", "Longest stall",
     At<&RunSummary::sum, &TrainingStart::longest_checkpoint_seconds>, OneDigit},
    {"starts", "Starts", At<&RunSummary::starts>},
    {"redone_iterations", "Redone", At<&RunSummary::redone_iterations>},
    {"redone_seconds", "Redone s", At<&RunSummary::redone_seconds>, OneDigit},
    {"gap_seconds", "Gap s", At<&RunSummary::gap_seconds>, OneDigit},
    {"lost_seconds", "Lost s", LostOf, OneDigit},
    {"days", "Days", At<&RunSummary::days>, TwoDigits},
    {"gpu_hours", "GPU-hours", At<&RunSummary::gpu_hours>, Rounded},
    {"notes", "Notes", nullptr, nullptr, NotesOf},
};

constexpr std::string_view kMarkdown[] = {"gpus", "size_b",    "dp",     "tp",         "pp",
                                          "mbs",  "gbs",       "mem_gb", "sec_per_it", "tflops",
                                          "days", "gpu_hours", "notes"};
constexpr std::string_view kTerminal[] = {"name", "gpus", "size_b", "tp", "pp", "dp", "mbs", "gbs",
                                          // speed and memory
                                          "iterations", "sec_per_it", "sec_per_it_median", "sec_per_it_stdev",
                                          "tflops", "tokens_per_s", "mem_gb",
                                          // results
                                          "loss", "days", "gpu_hours", "status", "cause"};

ColumnList Known(std::span<const std::string_view> keys, bool days) {
  ColumnList columns;
  for (const std::string_view key : keys)
    if (days || (key != "days" && key != "gpu_hours"))
      columns.push_back(std::ranges::find(kColumns, key, &ReportColumn::key));
  return columns;
}

}  // namespace

ColumnList AllColumns() {
  ColumnList all;
  for (const ReportColumn& column : kColumns)
    if (column.key != "name" && column.key != "notes") all.push_back(&column);
  return all;
}

Result<ColumnList> FindColumns(const std::vector<std::string>& names) {
  ColumnList columns;
  for (const std::string& name : names) {
    const auto found = std::ranges::find_if(kColumns, [&](const ReportColumn& column) {
      return SameWord(column.key, name) || SameWord(column.heading, name);
    });
    if (found == std::end(kColumns)) {
      std::vector<std::string_view> keys;
      for (const ReportColumn& column : kColumns) keys.push_back(column.key);
      return InvalidArgument("there is no column '{}'; the columns are {}", name, fmt::join(keys, ", "));
    }
    columns.push_back(found);
  }
  return columns;
}

ColumnList MarkdownColumns(bool days) { return Known(kMarkdown, days); }
ColumnList TerminalColumns(bool days) { return Known(kTerminal, days); }
std::string Cell(const ReportColumn& column, const RunSummary& run) {
  if (column.text) {
    std::string text = column.text(run);
    return text.empty() ? "-" : Printable(std::move(text), Lines::kOne);
  }
  const auto value = column.number(run);
  if (!value) return column.key == "sec_per_it" && run.end == RunEnd::kFailed ? "fail" : "-";
  return column.show ? column.show(*value) : fmt::format("{}", *value);
}

std::string RawCell(const ReportColumn& column, const RunSummary& run) {
  if (column.text) return Printable(column.text(run), Lines::kOne);
  const auto value = column.number(run);
  return value ? fmt::format("{}", *value) : "";
}

void SortBy(const ReportColumn& column, bool descending, std::vector<RunSummary>& runs) {
  std::ranges::stable_sort(runs, [&](const RunSummary& a, const RunSummary& b) {
    if (column.text) return descending ? column.text(b) < column.text(a) : column.text(a) < column.text(b);
    const double none = std::nan(""), left = column.number(a).value_or(none),
                 right = column.number(b).value_or(none);
    if (std::isnan(left) || std::isnan(right)) return std::isnan(right) && !std::isnan(left);
    return descending ? left > right : left < right;
  });
}

std::string SizeText(double parameters) {
  const auto short_form = [](double value) {
    return value >= 100 || value == std::round(value) ? fmt::format("{:.0f}", value)
                                                      : fmt::format("{:.3g}", value);
  };
  if (parameters >= 0.9995e9) return short_form(parameters / 1e9) + "B";
  if (parameters >= 0.9995e6) return short_form(parameters / 1e6) + "M";
  return short_form(parameters / 1e3) + "K";
}

}  // namespace cairn
