// The scripts ask the program itself (`cairn __complete -- WORDS`), so they always fit it.

#include <cstdio>
#include <memory>

#include "completion_scripts.h"
#include "tools/cli/choices.h"
#include "tools/cli/completion.h"
#include "tools/cli/exit_code.h"
#include "tools/commands/commands.h"

namespace cairn {

void AddCompletionCommand(CLI::App& app, Verb& verb) {
  const auto script = std::make_shared<const char*>();
  CLI::App* completion =
      app.add_subcommand("completion", "print the script that completes commands in a shell");
  AddChoice<const char*>(*completion, "SHELL", *script, "bash, zsh or fish",
                         {{"bash", kBashText}, {"zsh", kZshText}, {"fish", kFishText}})
      ->required();
  completion->footer(
      "bash: put `source <(cairn completion bash)` into ~/.bashrc. zsh: write the script to a file _cairn in "
      "a directory of $fpath. fish: write it to ~/.config/fish/completions/cairn.fish. `cmake --install` "
      "does this for all users.\n\n" +
      HelpFooter("source <(cairn completion bash)"));
  const auto print = [&verb](CLI::App* subcommand, std::function<std::string()> text) {
    subcommand->callback([&verb, text] {
      verb = [text]() -> Result<int> {
        std::fputs(text().c_str(), stdout);
        return kExitDone;
      };
    });
  };
  print(completion, [script] { return std::string(*script); });
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* complete = app.add_subcommand("__complete", "for the scripts of `cairn completion`")->group("");
  complete->add_option("WORD", *words, "the words up to the cursor");
  print(complete, [words, &app] {
    const bool is_train = words->size() > 2 && (*words)[1] == "train";
    return is_train ? CompleteTrain({words->begin() + 1, words->end()}) : Complete(app, *words);
  });
}

}  // namespace cairn
