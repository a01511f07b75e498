// rewrite computes the whole new text in memory and replaces the file by a rename. match distinguishes
// scripts from logs by name or by `#!`, and prints shell lines instead of renaming. Names are quoted for the
// shell and comments stay on one line: no file name becomes a command.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "ckpt/io/replace_file.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/printable.h"
#include "tools/commands/commands.h"
#include "tools/commands/report_flags.h"
#include "tools/process/shell_word.h"
#include "tools/report/match_logs.h"
#include "tools/report/rewrite_table.h"

namespace cairn {
namespace {

constexpr uint64_t kMaxTableBytes = 64 << 20;
constexpr uint64_t kMaxScriptBytes = 4 << 20;

struct RewriteArguments {
  std::string table;
  RewriteOptions options;
  bool in_place = false;
  bool dry_run = false;
  bool json = false;
};

// An input as a user gives it: by a flag, except those that only a column has.
std::string InputText(std::string name) {
  if (name == "seconds") return "seconds";
  if (name == "tflops") return "a number in the column TFLOPs";
  std::ranges::replace(name, '_', '-');
  return "--" + name;
}

std::string LeftRows(const RewrittenText& text) {
  std::string line = text.left == 1 ? "1 row not changed" : fmt::format("{} rows not changed", text.left);
  for (const char* separator = ": "; const auto& [name, rows] : text.lacking)
    line += fmt::format("{}{} without {}", std::exchange(separator, ", "), rows, InputText(name));
  if (text.without_seconds > 0)
    line += fmt::format("; {} of {} tables without a column of seconds (Sec/it, Speed)", text.without_seconds,
                        text.tables);
  return line;
}

Result<int> RunRewrite(const RewriteArguments& arguments) {
  RewriteOptions options = arguments.options;
  if (arguments.table.ends_with(".csv")) options.syntax = TableSyntax::kCsv;
  CAIRN_ASSIGN_OR_RETURN(const std::string text,
                         ReadSmallFile(FileSystem::Posix(), arguments.table, kMaxTableBytes));
  const Result<RewrittenText> rewritten = RewriteTflops(text, options);
  if (!rewritten.ok()) return rewritten.status().WithContext(arguments.table);
  const bool writes = arguments.in_place && !arguments.dry_run && rewritten->changed > 0;
  if (writes) CAIRN_RETURN_IF_ERROR(ReplaceSmallFile(FileSystem::Posix(), arguments.table, rewritten->text));
  if (arguments.json) {
    PrintJson({{"file", arguments.table},
               {"tables", rewritten->tables},
               {"tables_without_seconds", rewritten->without_seconds},
               {"computed", rewritten->computed},
               {"changed", rewritten->changed},
               {"left", rewritten->left},
               {"left_without", rewritten->lacking}});
  } else if (arguments.in_place || arguments.dry_run) {
    PrintLine("{}: {} rows computed, {} cells {}, {}", arguments.table, rewritten->computed,
              rewritten->changed, writes ? "changed" : "would change", LeftRows(*rewritten));
  } else {
    fmt::print("{}", rewritten->text);
    if (rewritten->left > 0) PrintProblem(fmt::format("{}: {}", arguments.table, LeftRows(*rewritten)));
  }
  return kExitDone;
}

struct MatchArguments {
  std::vector<std::string> files;
  bool json = false;
};

bool IsScript(const std::string& path, std::string_view text) {
  return path.ends_with(".slurm") || path.ends_with(".sbatch") || path.ends_with(".sh") ||
         text.starts_with("#!");
}

int PrintMatches(const std::vector<LogMatch>& matches, bool json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  bool all = true;
  for (const LogMatch& match : matches) {
    all &= !match.script.empty();
    nlohmann::ordered_json row = {{"log", match.log}};
    for (const auto& [name, value] :
         {std::pair{"script", match.script}, {"evidence", match.evidence}, {"rename", match.rename}})
      row[name] = value.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(value);
    list.push_back(std::move(row));
    if (json) continue;
    if (match.script.empty())
      PrintLine("# {}: {}", match.log, match.evidence.empty() ? "no script" : match.evidence);
    else if (match.rename.empty())
      PrintLine("# {}: of {}, by {}", match.log, match.script, match.evidence);
    else
      fmt::print("mv -n -- {} {}  {}\n", ShellWord(match.log), ShellWord(match.rename),
                 Printable(fmt::format("# of {}, by {}", match.script, match.evidence), Lines::kOne));
  }
  if (json) PrintJson(list);
  return all ? kExitDone : kExitCheckFailed;
}

Result<int> RunMatch(const MatchArguments& arguments) {
  std::vector<TrainingLog> logs;
  std::vector<JobScript> scripts;
  for (const std::string& path : arguments.files) {
    const Result<std::string> text = ReadSmallFile(FileSystem::Posix(), path, kMaxScriptBytes);
    if (!text.ok() && text.status().kind() != StatusKind::kNotSupported) return text.status();
    if (text.ok() && IsScript(path, *text)) {
      scripts.push_back(ReadJobScript(*text, path));
    } else {
      CAIRN_ASSIGN_OR_RETURN(TrainingLog log, ReadTrainingLog(path));
      logs.push_back(std::move(log));
    }
  }
  if (logs.empty() || scripts.empty())
    return InvalidArgument("report match needs logs and job scripts (.slurm, .sbatch, .sh); give {}, too",
                           logs.empty() ? "logs" : "scripts");
  return PrintMatches(MatchLogs(logs, scripts), arguments.json);
}

}  // namespace

void AddReportRewrite(CLI::App& report, Verb& verb) {
  const auto [rewrite, arguments] =
      AddVerb(report, verb, "rewrite", "recompute the TFLOPs column of a table", RunRewrite);
  rewrite->add_option("TABLE", arguments->table, "Markdown with tables, or one table as .csv")->required();
  rewrite->add_flag("--in-place", arguments->in_place,
                    "change the file; without it the new text goes to standard output");
  rewrite->add_flag("--dry-run", arguments->dry_run, "only count the changes");
  rewrite->add_flag("--json", arguments->json, "print counts as JSON instead of the text");
  AddFormula(*rewrite, arguments->options.formula,
             "formula (default auto: Megatron's for rows with layers, hidden size and "
             "vocabulary; model does not count recomputation)");
  AddConfigFlags(*rewrite, arguments->options.defaults);
  rewrite->footer("Only the digits of TFLOPs change; they keep their number of decimals.\n\n" +
                  HelpFooter("cairn report rewrite runs.md --seq-length 1024 --in-place"));
}

void AddReportMatch(CLI::App& report, Verb& verb) {
  const auto [match, arguments] = AddVerb(
      report, verb, "match", "pair job scripts with logs, and print commands that rename them", RunMatch);
  match->add_option("FILE", arguments->files, "job scripts (.slurm, .sbatch, .sh) and logs")->required();
  match->add_flag("--json", arguments->json, "print the pairs as JSON");
  match->footer("It renames nothing: a shell can run the lines that it prints.\n\n" +
                HelpFooter("cairn report match jobs/*.slurm logs/*.out", "a log has no script, or several"));
}

}  // namespace cairn
