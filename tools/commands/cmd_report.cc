// Columns and targets are checked first, because logs may take long. Then all logs are read, their starts
// joined to runs, summarized, sorted and printed; the picture is made from the same summaries. A log
// that cannot be read is a problem and an exit status, but the others still make their rows.

#include <memory>

#include "ckpt/io/file_system.h"
#include "ckpt/step/partial_dir.h"
#include "tools/cli/choices.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/commands/commands.h"
#include "tools/commands/report_flags.h"
#include "tools/report/plot.h"
#include "tools/report/report_text.h"

namespace cairn {
namespace {

struct ReportOptions {
  std::vector<std::string> logs;
  SummaryOptions summary;
  TableFormat format = TableFormat::kTable;
  std::vector<std::string> columns;  // empty: those of the format
  std::string sort;
  bool reverse = false;
  bool keep_apart = false;
  PlotOptions plot;
  std::string plot_file;
  bool dry_run = false;
};

// The logs that could be read; each of the others is reported in a line and sets `trouble`.
std::vector<TrainingLog> ReadAll(const std::vector<std::string>& paths, bool& trouble) {
  std::vector<TrainingLog> logs;
  for (const std::string& path : paths) {
    Result<TrainingLog> log = ReadTrainingLog(path);
    if (!log.ok()) {
      PrintProblem(log.status().message());
      trouble = true;
      continue;
    }
    const TrainingStart& only = log->starts[0];
    if (log->starts.size() == 1 && only.series.empty() && !only.failure) {
      PrintProblem(fmt::format("{}: {}", path, only.why_empty));
      trouble |= log->facts.zeros > 0 || log->facts.compressed;
    }
    logs.push_back(*std::move(log));
  }
  return logs;
}

Status Print(const ReportOptions& options, const std::vector<RunSummary>& runs) {
  CAIRN_ASSIGN_OR_RETURN(ColumnList columns, FindColumns(options.columns));
  const bool chosen = !columns.empty();
  const bool days = options.summary.iterations || options.summary.tokens;
  if (options.format == TableFormat::kJson)
    PrintJson(ReportJson(runs));
  else if (options.format == TableFormat::kCsv)
    fmt::print("{}", CsvText(chosen ? columns : AllColumns(), runs));
  else if (options.format == TableFormat::kMarkdown)
    fmt::print("{}", MarkdownTable(chosen ? columns : MarkdownColumns(days), runs));
  else
    fmt::print("{}", TerminalTable(chosen ? columns : TerminalColumns(days), runs));
  return OkStatus();
}

// The picture's path must be free before the logs are read.
Status CheckPlotFile(const std::string& path) {
  if (path.empty()) return OkStatus();
  const Result<FileInfo> there = FileSystem::Posix().Stat(path);
  if (there.ok()) return AlreadyExists("{} already exists; remove it or give another name", path);
  CAIRN_RETURN_IF_ERROR(CheckOutsideSteps(FileSystem::Posix(), path));
  return there.status().kind() == StatusKind::kNotFound ? PlotTypeOf(path).status() : there.status();
}

Status WritePlot(const ReportOptions& options, const std::vector<RunSummary>& runs) {
  if (options.plot_file.empty()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::string picture, Plot(runs, options.plot, options.plot_file));
  if (!options.dry_run) return WriteSmallFile(FileSystem::Posix(), options.plot_file, picture);
  fmt::print(stderr, "would write {}: {} bytes\n", options.plot_file, picture.size());
  return OkStatus();
}

Result<int> RunReportVerb(const ReportOptions& options) {
  if (options.logs.empty()) return InvalidArgument("report needs a LOG; see cairn report --help");
  ColumnList sort;
  if (!options.sort.empty()) {
    CAIRN_ASSIGN_OR_RETURN(sort, FindColumns({options.sort}));
  }
  CAIRN_RETURN_IF_ERROR(FindColumns(options.columns).status());
  CAIRN_RETURN_IF_ERROR(CheckPlotFile(options.plot_file));
  bool trouble = false;
  std::vector<RunSummary> runs;
  for (TrainingRun& run : JoinRuns(ReadAll(options.logs, trouble), !options.keep_apart))
    runs.push_back(Summarize(std::move(run), options.summary));
  if (!sort.empty()) SortBy(*sort[0], options.reverse, runs);
  if (!runs.empty() || options.format == TableFormat::kJson) CAIRN_RETURN_IF_ERROR(Print(options, runs));
  CAIRN_RETURN_IF_ERROR(WritePlot(options, runs));
  return trouble ? kExitTrouble : kExitDone;
}

void AddReportFlags(CLI::App& report, ReportOptions& options) {
  report.add_option(
      "LOG", options.logs,
      "logs of Megatron-LM, Megatron-DeepSpeed, nanotron, DeepSpeed, torchtitan, nanoGPT, Hugging Face's "
      "Trainer or cairn train; -: stdin");
  AddTableFormat(report, options.format);
  report.add_option("--columns", options.columns, "columns to show, by their names in --format json")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("NAME,...");
  report.add_option("--sort", options.sort, "column to sort by; runs without a value come last")
      ->option_text("COLUMN");
  report.add_flag("--reverse", options.reverse, "sort from the largest");
  report
      .add_option("--skip", options.summary.skip,
                  "leave this many first iterations of a run out of averages (default 0)")
      ->check(CLI::NonNegativeNumber)
      ->option_text("N");
  AddFormula(report, options.summary.formula,
             "formula of the TFLOPs column (default auto: Megatron's if the model's shape is "
             "known; model does not count recomputation)");
  report.add_option("--iterations", options.summary.iterations, "add the days to train this many iterations")
      ->check(CLI::PositiveNumber)
      ->option_text("N");
  report
      .add_option("--tokens", options.summary.tokens, "add the days to train on this many tokens, like 300e9")
      ->check(CLI::PositiveNumber)
      ->option_text("N");
  report.add_option("--plot", options.plot_file, "plot loss, sec_per_it and tflops into this file")
      ->option_text("FILE.png|svg");
  report
      .add_option("--x", options.plot.x,
                  "x axis of the plot: iteration (the default), or a column like pp, with one point a run")
      ->option_text("COLUMN");
  report.add_option("--y", options.plot.y, "columns to plot")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->option_text("COLUMN,...");
  report.add_flag("--dry-run", options.dry_run, "do not write the plot; print its size");
  report.add_flag("--no-join", options.keep_apart, "show a row for each start of a run");
}

}  // namespace

void AddReportCommand(CLI::App& app, Verb& verb) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* report =
      app.add_subcommand("report", "turn logs into tables: averages, TFLOPs, and why a run failed");
  AddReportFlags(*report, *options);
  AddConfigFlags(*report, options->summary.defaults);
  AddReportRewrite(*report, verb);
  AddReportMatch(*report, verb);
  report->require_subcommand(0, 1);
  report->footer(
      "The configuration comes from the log, else from the file's name "
      "(61B-zero1-mbs-2-pp16-dp-1-gas-512.out), else from options. Starts that continue each other are one "
      "run.\n"
      "A failed run is a row with the reason; a run whose log ends before its last iteration is incomplete. "
      "Only a log that cannot be read is trouble.\n\n" +
      HelpFooter("cairn report logs/*.out --format md --sort sec_per_it --gpus 64 --seq-length 1024"));
  report->callback([options, report, &verb] {
    if (report->get_subcommands().empty()) verb = [options] { return RunReportVerb(*options); };
  });
}

}  // namespace cairn
