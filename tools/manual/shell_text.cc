#include "tools/manual/shell_text.h"

#include <algorithm>

namespace cairn::manual {

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

std::string FunctionName(const Command& command) {
  return "_" + Replaced(Replaced(command.name, " ", "_"), "-", "_");
}

ValueKind PositionalKind(const Command& command) {
  ValueKind kind = ValueKind::kOther;
  for (const Option& positional : command.positionals) {
    if (positional.value.kind == ValueKind::kFile) return ValueKind::kFile;
    if (positional.value.kind == ValueKind::kDirectory) kind = ValueKind::kDirectory;
  }
  return kind;
}

std::vector<std::string> PositionalChoices(const Command& command) {
  std::vector<std::string> words;
  for (const Option& positional : command.positionals)
    words.insert(words.end(), positional.value.choices.begin(), positional.value.choices.end());
  return words;
}

std::vector<std::string> CommandWords(const Command& root) {
  std::vector<std::string> words;
  for (const Command* command : AllCommands(root))
    if (command != &root) words.push_back(command->name);
  return words;
}

std::vector<std::string> ValueFlags(const Command& root) {
  std::vector<std::string> flags;
  for (const Command* command : AllCommands(root))
    for (const Option& option : command->options)
      for (const std::string& name : option.names)
        if (option.value.kind != ValueKind::kNone) flags.push_back(command->name + " " + name);
  return flags;
}

}  // namespace cairn::manual
