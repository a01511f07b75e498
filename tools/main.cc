// The `cairn` command: one row a verb. A Status becomes one line on stderr and an exit status here, nowhere
// else.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string>

#include "ckpt/base/nearest_name.h"
#include "ckpt/base/threads.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/json_printed.h"
#include "tools/cli/output.h"
#include "tools/cli/verb.h"
#include "tools/commands/archive/cmd_archive.h"
#include "tools/commands/commands.h"

namespace cairn {
namespace {

using AddCommand = void (*)(CLI::App& app, Verb& verb);

// In the order of --help. Each adds its subcommand to `app`, and sets `verb` when that one was given.
constexpr AddCommand kCommands[] = {
    AddTrainCommand,   AddDataCommand,        AddLsCommand,        AddInspectCommand, AddVerifyCommand,
    AddSealCommand,    AddFingerprintCommand, AddDiffCommand,      AddReshapeCommand, AddStripCommand,
    AddConvertCommand, AddArchiveCommand,     AddPlanCommand,      AddReportCommand,  AddBenchCommand,
    AddServeCommand,   AddManualCommand,      AddCompletionCommand};

// "unknown verb 'lss'; did you mean ls?"; nothing where `given` is a verb.
std::optional<std::string> UnknownVerb(const CLI::App& app, std::string_view given) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  const std::string nearest = NearestName(verbs, given);
  if (nearest == given) return std::nullopt;
  return fmt::format(
      "unknown verb '{}'; {}", given,
      nearest.empty() ? "cairn --help lists the verbs" : fmt::format("did you mean {}?", nearest));
}

// Whether the caller wants JSON on stdout, also where the arguments as a whole make no sense.
bool WantsJson(std::span<char*> arguments) {
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") return false;
    if (argument == "--json" || argument == "--format=json") return true;
    if (argument == "json" && std::string_view(arguments[i - 1]) == "--format") return true;
  }
  return false;
}

// One line on stderr; for --json also {"error": ...} on stdout, unless the verb has told its facts there.
void PrintFailure(const std::string& message, bool json) {
  PrintProblem(message);
  if (json && !JsonWasPrinted()) PrintJson({{"error", message}});
}

// CLI11's own printing for --help and --version; its errors as one line.
int ReportParse(const CLI::App& app, const CLI::ParseError& error, bool json) {
  if (error.get_exit_code() == 0) {
    app.exit(error);
    return kExitDone;
  }
  const auto chosen = app.get_subcommands();
  PrintFailure(fmt::format("{}; see cairn {}--help", error.what(),
                           chosen.empty() ? "" : chosen.front()->get_name() + " "),
               json);
  return kExitTrouble;
}

int Run(int argc, char** argv, bool json) {
  CLI::App app("Cairn: checkpoints of 3D-parallel training, saved, checked, reshaped and kept.", "cairn");
  app.set_version_flag("--version", "cairn " CAIRN_VERSION);
  app.footer(HelpFooter("cairn ls /scratch/me/runs", "a check failed or two checkpoints differ") +
             "\n\n`cairn VERB --help` describes a verb, `cairn manual VERB` shows its manual page.");
  app.require_subcommand(1);
  Verb verb;
  for (const AddCommand add : kCommands) add(app, verb);

  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return kExitTrouble;
  }
  if (argv[1][0] != '-') {
    if (const auto unknown = UnknownVerb(app, argv[1])) {
      PrintFailure(*unknown, json);
      return kExitTrouble;
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ReportParse(app, error, json);
  }
  const Result<int> result = verb();
  if (result.ok()) return *result;
  PrintFailure(result.status().message(), json);
  return kExitTrouble;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is the error of a write
  const bool json = cairn::WantsJson({argv, static_cast<size_t>(argc)});
  int code = cairn::kExitTrouble;
  try {
    code = cairn::Run(argc, argv, json);
  } catch (const std::exception& error) {
    cairn::PrintFailure(cairn::TextOf(error), json);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    cairn::PrintProblem("cannot write to standard output");
    code = cairn::kExitTrouble;
  }
  return code;
}
