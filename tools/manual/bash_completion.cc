// The script first walks the words before the cursor to the command that they name, then looks up what may
// stand there: the values of the flag before the cursor, else flags, commands and paths.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "tools/manual/completion.h"
#include "tools/manual/shell_text.h"
#include "tools/process/shell_word.h"

namespace cairn::manual {
namespace {

// A `case` over "COMMAND WORD"; what leads to the same action stands in one branch.
std::string BashCase(const std::string& subject,
                     const std::map<std::string, std::vector<std::string>>& actions) {
  std::string text = fmt::format("  case {} in\n", subject);
  for (const auto& [action, subjects] : actions) {
    if (subjects.empty()) continue;
    std::vector<std::string> quoted;
    for (const std::string& s : subjects) quoted.push_back(ShellQuoted(s));
    text += fmt::format("    {})\n      {} ;;\n", fmt::join(quoted, " | \\\n    "), action);
  }
  return text + "  esac\n";
}

std::string BashValueAction(const Value& value, const std::string& program) {
  switch (value.kind) {
    case ValueKind::kChoice:
      return fmt::format("COMPREPLY=($(compgen -W {} -- \"$cur\")); return",
                         ShellQuoted(fmt::format("{}", fmt::join(value.choices, " "))));
    case ValueKind::kFile:
      return fmt::format("_{}_paths -f; return", program);
    case ValueKind::kDirectory:
      return fmt::format("_{}_paths -d; return", program);
    default:
      return "return";
  }
}

std::string BashWords(const Command& command) {
  std::vector<std::string> words = PositionalChoices(command), flags;
  for (const Command& below : command.commands) words.push_back(LastWord(below));
  for (const Option& option : command.options)
    flags.insert(flags.end(), option.names.begin(), option.names.end());
  const ValueKind kind = PositionalKind(command);
  const std::string paths = kind == ValueKind::kFile ? "-f" : kind == ValueKind::kDirectory ? "-d" : "";
  return fmt::format("words='{}' flags='{}' paths={}", fmt::join(words, " "), fmt::join(flags, " "), paths);
}

constexpr std::string_view kBashHead = R"(# bash completion of {0}, made by `{0} completion bash`.

# Adds the names that compgen finds; $1 is -f for files, -d for directories.
_{0}_paths() {{
  local path
  compopt -o filenames 2> /dev/null
  while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen "$1" -- "$cur")
}}

_{0}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command={0} words flags paths i
  COMPREPLY=()
  # bash cuts --flag=value into three words.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
)";

constexpr std::string_view kBashTail = R"(  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    [[ -z $paths ]] || _{0}_paths "$paths"
  fi
}}
complete -F _{0} {0}
)";

}  // namespace

std::string BashCompletion(const Command& root) {
  std::map<std::string, std::vector<std::string>> steps, values, offers;
  steps["command=\"$command ${COMP_WORDS[i]}\""] = CommandWords(root);
  steps["[[ ${COMP_WORDS[i + 1]} == = ]] && ((i++)); ((i++))"] = ValueFlags(root);
  for (const Command* command : AllCommands(root)) {
    offers[BashWords(*command)].push_back(command->name);
    for (const Option& option : command->options)
      for (const std::string& name : option.names)
        if (option.value.kind != ValueKind::kNone)
          values[BashValueAction(option.value, root.name)].push_back(command->name + " " + name);
  }
  return fmt::format(kBashHead, root.name) + BashCase("\"$command ${COMP_WORDS[i]}\"", steps) + "  done\n" +
         BashCase("\"$command $prev\"", values) + BashCase("$command", offers) +
         fmt::format(kBashTail, root.name);
}

}  // namespace cairn::manual
