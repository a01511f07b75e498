// The file is one table, kColumns: every form of a report (tables, CSV, JSON, page, plots) takes its columns
// from it. Most columns are a member of RunSummary or RunConfig, so a few templates over pointers to members
// make their functions. Below the table stand the selections of columns, cells and sorting.

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

template <std::optional<int64_t> RunConfig::*field>
Number Count(const RunSummary& run) {
  const auto& value = run.config.*field;
  return value ? Number(static_cast<double>(*value)) : std::nullopt;
}
template <std::optional<double> RunSummary::*field>
Number Field(const RunSummary& run) {
  return run.*field;
}
template <int64_t RunSummary::*field>
Number Whole(const RunSummary& run) {
  return run.*field < 0 ? std::nullopt : Number(static_cast<double>(run.*field));
}
template <double RunSummary::*field>
Number Real(const RunSummary& run) {
  return run.*field;
}

std::string Seconds(double value) {
  return value < 1 ? fmt::format("{:.4f}", value) : fmt::format("{:.2f}", value);
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

Number MemoryOf(const RunSummary& run) { return run.reserved_gib ? run.reserved_gib : run.allocated_gib; }
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
std::string CauseTextOf(const RunSummary& run) { return run.failure ? run.failure->failure.text : ""; }
Number CauseLineOf(const RunSummary& run) {
  return run.failure ? Number(static_cast<double>(run.failure->failure.line)) : std::nullopt;
}
Number StartsOf(const RunSummary& run) { return run.starts; }
Number LostOf(const RunSummary& run) { return run.lost_seconds(); }

// "name; fail: out of memory, line 12; 2 restarts"
std::string NotesOf(const RunSummary& run) {
  std::string notes = NameOf(run);
  if (!run.ok()) notes += fmt::format("; {}: {}", Name(run.end), run.cause);
  if (run.failure) notes += fmt::format(" (line {})", run.failure->failure.line);
  if (run.starts > 1) notes += fmt::format("; {} restart{}", run.starts - 1, run.starts == 2 ? "" : "s");
  if (run.nans > 0) notes += fmt::format("; {} NaN", run.nans);
  return notes;
}

constexpr ReportColumn kColumns[] = {
    {"file", "File", nullptr, FileOf},
    {"name", "Name", nullptr, NameOf},
    {"status", "Status", nullptr, StatusOf},
    {"cause", "Cause", nullptr, CauseOf},
    {"cause_line", "Line", CauseLineOf},
    {"cause_text", "Says", nullptr, CauseTextOf},
    {"gpus", "GPUs", Count<&RunConfig::gpus>},
    {"size_b", "Size", SizeOf, nullptr, SizeOfBillions},
    {"dp", "DP", Count<&RunConfig::dp>},
    {"tp", "TP", Count<&RunConfig::tp>},
    {"pp", "PP", Count<&RunConfig::pp>},
    {"cp", "CP", Count<&RunConfig::cp>},
    {"zero", "ZeRO", Count<&RunConfig::zero>},
    {"gas", "GAS", Count<&RunConfig::gas>},
    {"mbs", "MBS", Count<&RunConfig::mbs>},
    {"gbs", "GBS", Count<&RunConfig::gbs>},
    {"layers", "Layers", Count<&RunConfig::layers>},
    {"hidden", "Hidden", Count<&RunConfig::hidden>},
    {"heads", "Heads", Count<&RunConfig::heads>},
    {"seq", "Seq", Count<&RunConfig::seq>},
    {"vocab", "Vocab", Count<&RunConfig::vocab>},
    {"precision", "Type", nullptr, PrecisionOf},
    {"mem_gb", "Mem", MemoryOf, nullptr, Gigabytes},
    {"allocated_gb", "Allocated", Field<&RunSummary::allocated_gib>, nullptr, Gigabytes},
    {"reserved_gb", "Reserved", Field<&RunSummary::reserved_gib>, nullptr, Gigabytes},
    {"iterations", "Iterations", Whole<&RunSummary::iterations>},
    {"first_iteration", "First", Whole<&RunSummary::first_iteration>},
    {"last_iteration", "Last", Whole<&RunSummary::last_iteration>},
    {"total_iterations", "Of", Whole<&RunSummary::total>},
    {"sec_per_it", "Sec/it", Field<&RunSummary::sec_per_it>, nullptr, Seconds},
    {"sec_per_it_skip1", "Sec/it (1 left out)", Field<&RunSummary::sec_per_it_skip1>, nullptr, Seconds},
    {"sec_per_it_skip2", "Sec/it (2 left out)", Field<&RunSummary::sec_per_it_skip2>, nullptr, Seconds},
    {"sec_per_it_median", "Median", Field<&RunSummary::median>, nullptr, Seconds},
    {"sec_per_it_stdev", "±", Field<&RunSummary::deviation>, nullptr, Seconds},
    {"sec_per_it_min", "Fastest", Field<&RunSummary::fastest>, nullptr, Seconds},
    {"sec_per_it_max", "Slowest", Field<&RunSummary::slowest>, nullptr, Seconds},
    {"outliers", "Outliers", Whole<&RunSummary::outliers>},
    {"tflops", "TFLOPs", Field<&RunSummary::tflops>, nullptr, TwoDigits},
    {"tflops_simple", "TFLOPs (simple)", Field<&RunSummary::tflops_simple>, nullptr, TwoDigits},
    {"tflops_megatron", "TFLOPs (Megatron)", Field<&RunSummary::tflops_megatron>, nullptr, TwoDigits},
    {"tflops_model", "TFLOPs (model)", Field<&RunSummary::tflops_model>, nullptr, TwoDigits},
    {"tflops_logged", "TFLOPs (logged)", Field<&RunSummary::tflops_logged>, nullptr, TwoDigits},
    {"pflops", "PFLOPs", PflopsOf, nullptr, TwoDigits},
    {"samples_per_s", "Samples/s", Field<&RunSummary::samples_per_s>, nullptr, Rounded},
    {"tokens_per_s", "Tokens/s", Field<&RunSummary::tokens_per_s>, nullptr, Rounded},
    {"loss", "Loss", Field<&RunSummary::loss>, nullptr, FourFigures},
    {"grad_norm", "Grad norm", Field<&RunSummary::grad_norm>, nullptr, FourFigures},
    {"validation_loss", "Validation loss", Field<&RunSummary::validation_loss>, nullptr, FourFigures},
    {"skipped_iterations", "Skipped", Whole<&RunSummary::skipped>},
    {"nan_iterations", "NaN", Whole<&RunSummary::nans>},
    {"checkpoints", "Checkpoints", Whole<&RunSummary::checkpoints>},
    {"checkpoint_seconds", "Stall", Real<&RunSummary::checkpoint_seconds>, nullptr, OneDigit},
    {"longest_checkpoint_seconds", "Longest stall", Real<&RunSummary::longest_checkpoint_seconds>, nullptr,
     OneDigit},
    {"starts", "Starts", StartsOf},
    {"redone_iterations", "Redone", Whole<&RunSummary::redone_iterations>},
    {"redone_seconds", "Redone s", Real<&RunSummary::redone_seconds>, nullptr, OneDigit},
    {"gap_seconds", "Gap s", Real<&RunSummary::gap_seconds>, nullptr, OneDigit},
    {"lost_seconds", "Lost s", LostOf, nullptr, OneDigit},
    {"days", "Days", Field<&RunSummary::days>, nullptr, TwoDigits},
    {"gpu_hours", "GPU-hours", Field<&RunSummary::gpu_hours>, nullptr, Rounded},
    {"notes", "Notes", nullptr, NotesOf},
};

ColumnList Known(std::initializer_list<std::string_view> keys, bool days) {
  ColumnList columns;
  for (const std::string_view key : keys) {
    if (!days && (key == "days" || key == "gpu_hours")) continue;
    for (const ReportColumn& column : kColumns)
      if (column.key == key) columns.push_back(&column);
  }
  return columns;
}

}  // namespace

std::span<const ReportColumn> ReportColumns() { return kColumns; }

Result<ColumnList> FindColumns(const std::vector<std::string>& names) {
  ColumnList columns;
  for (const std::string& name : names) {
    const auto found = std::ranges::find_if(kColumns, [&](const ReportColumn& column) {
      return SameWord(column.key, name) || SameWord(column.heading, name);
    });
    if (found == std::end(kColumns)) {
      std::vector<std::string_view> keys;
      for (const ReportColumn& column : kColumns) keys.push_back(column.key);
      return InvalidArgument("there is no column '{}'; there are {}", name, fmt::join(keys, ", "));
    }
    columns.push_back(found);
  }
  return columns;
}

ColumnList MarkdownColumns(bool days) {
  return Known({"gpus", "size_b", "dp", "tp", "pp", "mbs", "gbs", "mem_gb", "sec_per_it", "tflops", "days",
                "gpu_hours", "notes"},
               days);
}

ColumnList TerminalColumns(bool days) {
  return Known({"name",
                "gpus",
                "size_b",
                "tp",
                "pp",
                "dp",
                "mbs",
                "gbs",
                "iterations",
                "sec_per_it",
                "sec_per_it_median",
                "sec_per_it_stdev",
                "tflops",
                "tokens_per_s",
                "mem_gb",
                "loss",
                "days",
                "gpu_hours",
                "status",
                "cause"},
               days);
}

ColumnList PageColumns(bool days) {
  ColumnList columns = TerminalColumns(days);
  std::rotate(columns.begin() + 1, columns.end() - 2, columns.end());  // status and cause behind the name
  return columns;
}

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
    auto left = column.number(a), right = column.number(b);
    if (left && std::isnan(*left)) left.reset();
    if (right && std::isnan(*right)) right.reset();
    if (!left || !right) return left.has_value() && !right.has_value();
    return descending ? *left > *right : *left < *right;
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
