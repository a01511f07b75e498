// A function a command, each a call of zsh's _arguments. One that has subcommands hands the words behind its
// own first word to theirs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/manual/completion.h"
#include "tools/manual/shell_text.h"
#include "tools/process/shell_word.h"

namespace cairn::manual {
namespace {

// Text inside a specification of _arguments or _describe.
std::string ZshText(std::string text) {
  for (const char* sign : {"\\", "[", "]", ":"}) text = Replaced(text, sign, std::string("\\") + sign);
  return text;
}

std::string ZshAction(const Value& value) {
  switch (value.kind) {
    case ValueKind::kChoice:
      return fmt::format("({})", fmt::join(value.choices, " "));
    case ValueKind::kFile:
      return "_files";
    case ValueKind::kDirectory:
      return "_files -/";
    default:
      return " ";
  }
}

// One line for each name: '(--tp --tensor)--tp=[what it does]:N: '.
std::vector<std::string> ZshOption(const Option& option) {
  std::vector<std::string> others = option.names;
  others.insert(others.end(), option.excludes.begin(), option.excludes.end());
  const std::string before = option.repeated ? "*" : fmt::format("({})", fmt::join(others, " "));
  std::vector<std::string> lines;
  for (const std::string& name : option.names) {
    const std::string what = fmt::format("[{}]", ZshText(option.description));
    if (option.value.kind == ValueKind::kNone) {
      lines.push_back(ShellQuoted(before + name + what));
      continue;
    }
    const std::string sign = name.starts_with("--") ? "=" : "+";
    lines.push_back(ShellQuoted(fmt::format("{}{}{}{}:{}:{}", before, name, sign, what,
                                            ZshText(option.value.name), ZshAction(option.value))));
  }
  return lines;
}

std::vector<std::string> ZshOptions(const Command& command) {
  std::vector<std::string> lines;
  for (const Option& option : command.options)
    for (std::string& line : ZshOption(option)) lines.push_back(std::move(line));
  return lines;
}

std::vector<std::string> ZshPositionals(const Command& command) {
  std::vector<std::string> lines;
  for (const Option& positional : command.positionals)
    lines.push_back(ShellQuoted(fmt::format("{}:{}:{}", positional.repeated ? "*" : "",
                                            ZshText(positional.value.name), ZshAction(positional.value))));
  return lines;
}

// "_arguments FLAGS \" and its lines.
std::string ZshArguments(const std::string& flags, const std::vector<std::vector<std::string>>& parts) {
  std::string text = "_arguments " + flags;
  for (const std::vector<std::string>& lines : parts)
    for (const std::string& line : lines) text += " \\\n    " + line;
  return text;
}

std::string ZshLeaf(const Command& command) {
  return fmt::format("{}() {{\n  {}\n}}\n\n", FunctionName(command),
                     ZshArguments("-s -S", {ZshOptions(command), ZshPositionals(command)}));
}

// The names of the subcommands; where the command takes words of its own, those too.
std::string ZshFirstWord(const Command& command) {
  std::string text = fmt::format("{}_first() {{\n  local -a commands=(\n", FunctionName(command));
  for (const Command& below : command.commands)
    text += fmt::format("    {}\n", ShellQuoted(LastWord(below) + ":" + ZshText(below.summary)));
  text += "  )\n  _describe -t commands command commands\n";
  for (const Option& positional : command.positionals)
    if (positional.value.kind == ValueKind::kFile || positional.value.kind == ValueKind::kDirectory)
      text += fmt::format("  {}\n", ZshAction(positional.value));
  return text + "}\n\n";
}

std::string ZshParent(const Command& command) {
  const std::string name = FunctionName(command);
  std::string text = ZshFirstWord(command);
  text +=
      fmt::format("{}() {{\n  local curcontext=$curcontext state line ret=1\n  typeset -A opt_args\n", name);
  text += fmt::format(
      "  {} && ret=0\n",
      ZshArguments("-C", {ZshOptions(command),
                          {ShellQuoted(fmt::format("1: :{}_first", name)), ShellQuoted("*:: :->rest")}}));
  text += "  [[ $state == rest ]] || return ret\n  case $line[1] in\n";
  for (const Command& below : command.commands)
    text += fmt::format("    {}) {} && ret=0 ;;\n", LastWord(below), FunctionName(below));
  if (!command.positionals.empty())
    text += fmt::format("    *) {} && ret=0 ;;\n",
                        ZshArguments("-s -S", {ZshOptions(command), ZshPositionals(command)}));
  return text + "  esac\n  return ret\n}\n\n";
}

}  // namespace

std::string ZshCompletion(const Command& root) {
  std::string text =
      fmt::format("#compdef {0}\n# zsh completion of {0}, made by `{0} completion zsh`.\n\n", root.name);
  for (const Command* command : AllCommands(root))
    text += command->commands.empty() ? ZshLeaf(*command) : ZshParent(*command);
  const std::string main = FunctionName(root);
  // Autoloaded, the file is the function's body; sourced, it only declares it.
  return text +
         fmt::format("if [[ $funcstack[1] == {0} ]]; then\n  {0} \"$@\"\nelse\n  compdef {0} {1}\nfi\n", main,
                     root.name);
}

}  // namespace cairn::manual
