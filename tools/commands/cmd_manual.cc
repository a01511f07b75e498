// Pages and completions come from the CLI11 objects that also parse, so they cannot differ from --help. The
// one exception is train, which hands its flags on: its description is made from the trainer's own
// declarations. Without --format and --output a terminal gets the page through man and anything else gets
// Markdown.

#include <unistd.h>

#include <cstdio>
#include <memory>

#include "ckpt/io/file_system.h"
#include "ckpt/step/partial_dir.h"
#include "tools/cli/choices.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/hints.h"
#include "tools/commands/commands.h"
#include "tools/manual/command_tree.h"
#include "tools/manual/completion.h"
#include "tools/manual/markdown.h"
#include "tools/manual/roff.h"

namespace cairn {
namespace {

enum class PageFormat { kMan, kMarkdown };

struct ManualOptions {
  std::vector<std::string> words;  // of a command, without "cairn"; none: the program
  std::optional<PageFormat> format;
  std::string output;  // directory; empty: stdout
};

struct Page {
  std::string file;
  std::string text;
};

// The subcommand train declares no flags: it passes all on.
manual::Command DescribeProgram(const CLI::App& app) {
  manual::Command program = manual::DescribeCommand(app);
  for (manual::Command& command : program.commands)
    if (command.name == "cairn train") command = DescribeTrain();
  return program;
}

// The subcommand that `words` name. Errors: InvalidArgument naming the word.
Result<const manual::Command*> FindCommand(const manual::Command& program,
                                           const std::vector<std::string>& words) {
  const manual::Command* found = &program;
  for (const std::string& word : words) {
    if (const manual::Command* below = manual::FindSubcommand(*found, word)) {
      found = below;
      continue;
    }
    std::vector<std::string> verbs;
    for (const manual::Command& command : found->commands) verbs.push_back(manual::LastWord(command));
    return InvalidArgument("{} has no verb '{}'{}", found->name, word,
                           Hint(verbs, word, fmt::format("see {} --help", found->name)));
  }
  return found;
}

Page PageOf(const manual::Command& command, PageFormat format, const std::string& version) {
  if (format == PageFormat::kMarkdown) return {manual::MarkdownFile(command), manual::MarkdownPage(command)};
  return {manual::PageName(command) + ".1", manual::RoffPage(command, version)};
}

// The page, and those of the commands below it. Replaces existing files.
Status WritePages(const manual::Command& command, PageFormat format, const std::string& version,
                  const std::string& directory) {
  FileSystem& fs = FileSystem::Posix();
  CAIRN_RETURN_IF_ERROR(MakeOutputDir(fs, directory));
  for (const manual::Command* each : manual::AllCommands(command)) {
    const Page page = PageOf(*each, format, version);
    const std::string path = directory + "/" + page.file;
    CAIRN_RETURN_IF_ERROR(RemoveIfThere(fs, path));
    CAIRN_RETURN_IF_ERROR(WriteSmallFile(fs, path, page.text));
  }
  return OkStatus();
}

// Shows the page with man. False if there is no man.
bool ShowInMan(const std::string& page) {
  std::fflush(stdout);
  FILE* man = ::popen("man -l -", "w");
  if (man == nullptr) return false;
  std::fwrite(page.data(), 1, page.size(), man);
  return ::pclose(man) == 0;
}

Result<int> RunManual(const CLI::App& app, const ManualOptions& options) {
  const manual::Command program = DescribeProgram(app);
  CAIRN_ASSIGN_OR_RETURN(const manual::Command* command, FindCommand(program, options.words));
  const std::string version = app.version();
  if (!options.output.empty()) {
    CAIRN_RETURN_IF_ERROR(
        WritePages(*command, options.format.value_or(PageFormat::kMan), version, options.output));
    return kExitDone;
  }
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (!options.format && terminal && ShowInMan(PageOf(*command, PageFormat::kMan, version).text))
    return kExitDone;
  const Page page = PageOf(*command, options.format.value_or(PageFormat::kMarkdown), version);
  std::fputs(page.text.c_str(), stdout);
  return kExitDone;
}

using ScriptOf = std::string (*)(std::string_view program);

}  // namespace

void AddManualCommand(CLI::App& app, Verb& verb) {
  const auto options = std::make_shared<ManualOptions>();
  CLI::App* manual = app.add_subcommand("manual", "show the manual page of a verb, or write all pages");
  manual->add_option("VERB", options->words, "reshape, or the words of a subcommand: archive run");
  AddChoice<PageFormat>(*manual, "--format", options->format, "man (roff) or Markdown",
                        {{"man", PageFormat::kMan}, {"markdown", PageFormat::kMarkdown}});
  manual
      ->add_option("--output", options->output,
                   "write the page, and those of the verb's subcommands, into this directory")
      ->type_name("DIR");
  manual->footer(
      "Without --format a terminal shows the page with man, and a pipe or a file gets Markdown; --output "
      "writes man pages. Pages are made from the same flags as --help. `cmake --install` puts them where man "
      "finds them.\n\n" +
      HelpFooter("cairn manual archive run"));
  manual->callback([options, &app, &verb] { verb = [options, &app] { return RunManual(app, *options); }; });
}

void AddCompletionCommand(CLI::App& app, Verb& verb) {
  const auto script_of = std::make_shared<ScriptOf>();
  CLI::App* completion =
      app.add_subcommand("completion", "print the script that completes commands in a shell");
  AddChoice<ScriptOf>(
      *completion, "SHELL", *script_of, "bash, zsh or fish",
      {{"bash", manual::BashScript}, {"zsh", manual::ZshScript}, {"fish", manual::FishScript}})
      ->required();
  completion->footer(
      "bash: put `source <(cairn completion bash)` into ~/.bashrc. zsh: write the script to a file _cairn in "
      "a directory of $fpath. fish: write it to ~/.config/fish/completions/cairn.fish. `cmake --install` "
      "does this for all users.\n\n" +
      HelpFooter("source <(cairn completion bash)"));
  completion->callback([script_of, &app, &verb] {
    verb = [script_of, &app]() -> Result<int> {
      std::fputs((*script_of)(app.get_name()).c_str(), stdout);
      return kExitDone;
    };
  });
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* complete = app.add_subcommand("__complete", "for the scripts of `cairn completion`")->group("");
  complete->add_option("WORD", *words, "the words up to the cursor");
  complete->callback([words, &app, &verb] {
    verb = [words, &app]() -> Result<int> {
      std::fputs(manual::CompletionText(manual::Complete(DescribeProgram(app), *words)).c_str(), stdout);
      return kExitDone;
    };
  });
}

}  // namespace cairn
