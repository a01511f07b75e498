#include "tools/manual/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace cairn::manual {

std::string PageName(const Command& command) {
  std::string name = command.name;
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string LastWord(const Command& command) { return command.name.substr(command.name.rfind(' ') + 1); }

const Command* FindSubcommand(const Command& command, std::string_view word) {
  const auto found = std::ranges::find(command.commands, word, LastWord);
  return found == command.commands.end() ? nullptr : &*found;
}

std::vector<std::string> SynopsisWords(const Command& command) {
  std::vector<std::string> words;
  if (!command.options.empty()) words.push_back("[OPTIONS]");
  for (const Option& option : command.options)
    if (option.required) words.push_back(fmt::format("{} {}", option.names.front(), ValueText(option)));
  if (!command.choose_one.empty()) words.push_back(fmt::format("{}", fmt::join(command.choose_one, "|")));
  for (const Option& positional : command.positionals)
    words.push_back(positional.required ? ValueText(positional) : fmt::format("[{}]", ValueText(positional)));
  if (!command.commands.empty()) words.push_back(command.needs_command ? "COMMAND" : "[COMMAND]");
  return words;
}

std::string ValueText(const Option& option) {
  const bool says_so = option.value.name.find(',') != std::string::npos;  // "A,B,C"
  return option.value.name + (option.several_values && !says_so ? "..." : "");
}

std::string ConstraintText(const Option& option) {
  std::vector<std::string> sentences;
  if (option.required) sentences.push_back("Required.");
  if (!option.value.default_value.empty())
    sentences.push_back(fmt::format("Default: {}.", option.value.default_value));
  if (!option.value.range.empty()) sentences.push_back(fmt::format("From {}.", option.value.range));
  if (!option.needs.empty()) sentences.push_back(fmt::format("Needs {}.", fmt::join(option.needs, ", ")));
  if (!option.excludes.empty())
    sentences.push_back(fmt::format("Not together with {}.", fmt::join(option.excludes, ", ")));
  return fmt::format("{}", fmt::join(sentences, " "));
}

std::string BodyText(const Option& option) {
  const std::string constraints = ConstraintText(option);
  if (constraints.empty()) return option.description;
  return fmt::format("{}{} {}", option.description, option.description.ends_with('.') ? "" : ".",
                     constraints);
}

std::vector<std::string> GroupsOf(const Command& command) {
  std::vector<std::string> groups;
  for (const Option& option : command.options)
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) groups.push_back(option.group);
  return groups;
}

std::vector<const Command*> AllCommands(const Command& root) {
  std::vector<const Command*> all = {&root};
  for (const Command& command : root.commands) {
    const std::vector<const Command*> below = AllCommands(command);
    all.insert(all.end(), below.begin(), below.end());
  }
  return all;
}

}  // namespace cairn::manual
