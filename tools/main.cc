// The `cairn` command: one row a verb. A Status becomes one line on stderr and an exit status here, nowhere
// else.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "ckpt/threads.h"
#include "tools/cmd_archive.h"
#include "tools/cmd_bench.h"
#include "tools/cmd_convert.h"
#include "tools/cmd_data.h"
#include "tools/cmd_diff.h"
#include "tools/cmd_fingerprint.h"
#include "tools/cmd_inspect.h"
#include "tools/cmd_ls.h"
#include "tools/cmd_plan.h"
#include "tools/cmd_report.h"
#include "tools/cmd_reshape.h"
#include "tools/cmd_strip.h"
#include "tools/cmd_train.h"
#include "tools/cmd_verify.h"
#include "tools/edit_distance.h"
#include "tools/exit_code.h"
#include "tools/output.h"
#include "tools/verb.h"

namespace cairn {
namespace {

using AddCommand = void (*)(CLI::App& app, Verb& verb);

// In the order of --help. Each adds its subcommand to `app`, and sets `verb` when that one was given.
constexpr AddCommand kCommands[] = {
    AddTrainCommand,       AddDataCommand, AddLsCommand,      AddInspectCommand, AddVerifyCommand,
    AddFingerprintCommand, AddDiffCommand, AddReshapeCommand, AddStripCommand,   AddConvertCommand,
    AddArchiveCommand,     AddPlanCommand, AddReportCommand,  AddBenchCommand};

// "unknown verb 'lss'; did you mean ls?"; nothing where `given` is a verb.
std::optional<std::string> UnknownVerb(const CLI::App& app, std::string_view given) {
  std::string nearest;
  size_t distance = SIZE_MAX;
  for (const CLI::App* verb : app.get_subcommands({})) {
    const size_t d = EditDistance(given, verb->get_name());
    if (d >= distance) continue;
    distance = d;
    nearest = verb->get_name();
  }
  if (distance == 0) return std::nullopt;
  return fmt::format(
      "unknown verb '{}'; {}", given,
      distance <= 2 ? fmt::format("did you mean {}?", nearest) : "cairn --help lists the verbs");
}

// CLI11's own printing for --help and --version; its errors as one line.
int ReportParse(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    app.exit(error);
    return kExitDone;
  }
  const auto chosen = app.get_subcommands();
  PrintProblem(fmt::format("{}; see cairn {}--help", error.what(),
                           chosen.empty() ? "" : chosen.front()->get_name() + " "));
  return kExitTrouble;
}

int Run(int argc, char** argv) {
  CLI::App app("Cairn: checkpoints of 3D-parallel training, saved, checked, reshaped and kept.", "cairn");
  app.set_version_flag("--version", "cairn " CAIRN_VERSION);
  app.footer(HelpFooter("cairn ls /scratch/me/runs", "a check failed or two checkpoints differ") +
             "\ncairn VERB --help tells more.");
  app.require_subcommand(1);
  Verb verb;
  for (const AddCommand add : kCommands) add(app, verb);

  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return kExitTrouble;
  }
  if (argv[1][0] != '-') {
    if (const auto unknown = UnknownVerb(app, argv[1])) {
      PrintProblem(*unknown);
      return kExitTrouble;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ReportParse(app, error);
  }
  const Result<int> result = verb();
  if (result.ok()) return *result;
  PrintProblem(result.status().message());
  return kExitTrouble;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is the error of a write
  int code = cairn::kExitTrouble;
  try {
    code = cairn::Run(argc, argv);
  } catch (const std::exception& error) {
    cairn::PrintProblem(cairn::TextOf(error));
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    cairn::PrintProblem("cannot write to standard output");
    code = cairn::kExitTrouble;
  }
  return code;
}
