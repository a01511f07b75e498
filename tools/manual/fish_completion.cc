// A function finds the command that the words before the cursor name; each `complete` line counts for one
// command.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/manual/completion.h"
#include "tools/manual/shell_text.h"

namespace cairn::manual {
namespace {

// fish ends a quoted text at ' and knows \' and \\ inside.
std::string FishQuoted(const std::string& text) {
  return "'" + Replaced(Replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string FishCases(const std::vector<std::string>& subjects) {
  std::vector<std::string> quoted;
  for (const std::string& subject : subjects) quoted.push_back(FishQuoted(subject));
  return fmt::format("{}", fmt::join(quoted, " \\\n                "));
}

std::string FishValue(const Value& value) {
  switch (value.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kChoice:
      return fmt::format(" -x -a {}", FishQuoted(fmt::format("{}", fmt::join(value.choices, " "))));
    case ValueKind::kFile:
      return " -r -F";
    case ValueKind::kDirectory:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::kOther:
      return " -x";
  }
  return "";
}

std::string FishCommand(const Command& command, const std::string& program) {
  const std::string line =
      fmt::format("complete -c {} -n {}", program,
                  FishQuoted(fmt::format("test (__{}_command) = \"{}\"", program, command.name)));
  std::string text;
  for (const Command& below : command.commands)
    text += fmt::format("{} -a {} -d {}\n", line, LastWord(below), FishQuoted(below.summary));
  for (const Option& option : command.options) {
    std::string names;
    for (const std::string& name : option.names)
      names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    text +=
        fmt::format("{}{}{} -d {}\n", line, names, FishValue(option.value), FishQuoted(option.description));
  }
  if (const auto words = PositionalChoices(command); !words.empty())
    text += fmt::format("{} -a {}\n", line, FishQuoted(fmt::format("{}", fmt::join(words, " "))));
  const ValueKind kind = PositionalKind(command);
  if (kind != ValueKind::kOther)
    text += line + (kind == ValueKind::kFile ? " -F\n" : " -a '(__fish_complete_directories)'\n");
  return text;
}

constexpr std::string_view kFishHead = R"(# fish completion of {0}, made by `{0} completion fish`.

# Prints the command that the words before the cursor name: "{0} archive run".
function __{0}_command
    set -l command {0}
    set -l is_value 0
    for word in (commandline -opc)[2..]
        if test $is_value = 1
            set is_value 0
            continue
        end
        switch "$command $word"
            case {1}
                set command "$command $word"
            case {2}
                set is_value 1
        end
    end
    echo $command
end

complete -c {0} -f
)";

}  // namespace

std::string FishCompletion(const Command& root) {
  std::string text =
      fmt::format(kFishHead, root.name, FishCases(CommandWords(root)), FishCases(ValueFlags(root)));
  for (const Command* command : AllCommands(root)) text += FishCommand(*command, root.name);
  return text;
}

}  // namespace cairn::manual
