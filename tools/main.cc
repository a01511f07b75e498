// The `cairn` command: one row per verb. A Status becomes one line on stderr and an exit status here, nowhere
// else.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/threads.h"
#include "ckpt/families/families.h"
#include "ckpt/io/file_system.h"
#include "convert/formats/systems.h"
#include "runtime/config/wrapped_help.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/hints.h"
#include "tools/cli/output.h"
#include "tools/cli/progress.h"
#include "tools/cli/verb.h"
#include "tools/commands/commands.h"

namespace cairn {
namespace {

using AddCommand = void (*)(CLI::App& app, Verb& verb);

// In the order of --help. Each adds its subcommand to `app`, and sets `verb` when that one was given.
constexpr AddCommand kCommands[] = {
    AddTrainCommand,   AddDataCommand,        AddLsCommand,        AddInspectCommand, AddVerifyCommand,
    AddSealCommand,    AddFingerprintCommand, AddDiffCommand,      AddReshapeCommand, AddStripCommand,
    AddConvertCommand, AddTagCommand,         AddArchiveCommand,   AddDoctorCommand,  AddPlanCommand,
    AddReportCommand,  AddServeCommand,       AddCompletionCommand};

// `cairn help archive run` is `cairn archive run --help`, and `cairn version` is `cairn --version`.
std::vector<std::string> FlagsForWords(std::vector<std::string> arguments) {
  if (arguments.front() == "help") {
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  } else if (arguments.front() == "version") {
    arguments.front() = "--version";
  }
  return arguments;
}

struct TableFlag {
  std::string_view name;
  Status (*add)(FileSystem& fs, const std::string& directory);
};
constexpr TableFlag kTables[] = {{"--families", AddFamilies}, {"--layouts", AddLayouts}};

// --quiet, --no-progress, --families and --layouts hold for every verb, before it or after it; train passes
// its own flags on. Errors: those of AddFamilies() and AddLayouts().
Status TakeGeneralFlags(std::vector<std::string>& arguments) {
  if (arguments.front() == "train") return OkStatus();
  std::vector<std::string> left;
  for (auto word = arguments.begin(); word != arguments.end(); ++word) {
    if (*word == "--") {
      left.insert(left.end(), word, arguments.end());
      break;
    }
    if (*word == "-q" || *word == "--quiet" || *word == "--no-progress") {
      Progress::TurnOff();
      if (*word != "--no-progress") PrintNoNotes();
    } else if (const auto table =
                   std::ranges::find(kTables, word->substr(0, word->find('=')), &TableFlag::name);
               table != std::end(kTables)) {
      const bool joined = word->size() > table->name.size();
      if (!joined && ++word == arguments.end()) return InvalidArgument("{}: which directory?", table->name);
      CAIRN_RETURN_IF_ERROR(
          table->add(FileSystem::Posix(), joined ? word->substr(table->name.size() + 1) : *word));
    } else {
      left.push_back(*word);
    }
  }
  arguments = std::move(left);
  return OkStatus();
}

// Whether the caller wants JSON on stdout, even if the arguments as a whole are invalid.
bool WantsJson(std::span<char*> arguments) {
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") return false;
    if (argument == "--json" || argument == "--format=json") return true;
    if (argument == "json" && std::string_view(arguments[i - 1]) == "--format") return true;
  }
  return false;
}

// One line on stderr; for --json also {"error": ...} on stdout, unless the verb has printed its facts there.
void PrintFailure(const std::string& message, bool json) {
  PrintProblem(message);
  if (json && !JsonWasPrinted()) PrintJson({{"error", message}});
}

// CLI11's own printing for --help and --version; its errors as one line.
int ReportParse(const CLI::App& app, const CLI::ParseError& error, bool json) {
  const bool unknown_verb = app.get_subcommands().empty() && !app.remaining().empty();
  if (error.get_exit_code() == 0 && !unknown_verb) {
    app.exit(error);
    return kExitDone;
  }
  std::string message = UnknownWord(app);
  if (message.empty()) message = fmt::format("{}; {}", error.what(), SeeHelp(app));
  PrintFailure(message, json);
  return kExitTrouble;
}

int Run(int argc, char** argv, bool json) {
  CLI::App app("Cairn: checkpoints of 3D-parallel training, saved, checked, reshaped and kept.", "cairn");
  app.set_version_flag("-V,--version", "cairn " CAIRN_VERSION);
  app.footer(HelpFooter("cairn ls /scratch/me/runs", "a check failed or two checkpoints differ") +
             "\n\n`cairn help VERB` describes a verb.");
  app.formatter(std::make_shared<WrappedHelp>());
  // Anywhere on the line: TakeGeneralFlags() has read them by now. They are declared for --help.
  bool read = false;
  app.add_flag("-q,--quiet", read, "no progress and no notes on stderr; also after the verb");
  app.add_flag("--no-progress", read, "no progress on stderr; also after the verb");
  std::string families;  // and layouts
  app.add_option("--families", families,
                 "read more families of models, from the *.json of a directory; also after the verb")
      ->option_text("DIR");
  app.add_option(
         "--layouts", families,
         "read more names of trainers' steps and files, from the *.json of a directory; also after the verb")
      ->option_text("DIR");
  app.require_subcommand(1);
  Verb verb;
  for (const AddCommand add : kCommands) add(app, verb);

  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return kExitTrouble;
  }
  std::vector<std::string> arguments = FlagsForWords({argv + 1, argv + argc});
  if (const Status status = TakeGeneralFlags(arguments); !status.ok()) {
    PrintFailure(status.message(), json);
    return ExitOf(status);
  }
  std::ranges::reverse(arguments);  // as CLI11 takes them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return ReportParse(app, error, json);
  }
  const Result<int> result = verb();
  if (result.ok()) return *result;
  PrintFailure(result.status().message(), json);
  return ExitOf(result.status());
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
    if (std::ferror(stdout) == 0) cairn::PrintFailure(cairn::TextOf(error), json);  // else see below
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    cairn::PrintProblem("cannot write to standard output");
    code = cairn::kExitTrouble;
  }
  return code;
}
