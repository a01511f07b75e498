// One pass: each CLI::App becomes a Command, each CLI::Option an Option. An option group of CLI11 is an App
// without a name; its options count as its parent's. The text of the footer is cut into notes, examples and
// exit statuses.
#include "tools/manual/command_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <string_view>

namespace cairn::manual {
namespace {

constexpr std::string_view kUsualGroup = "Options";  // CLI11's
constexpr std::string_view kDirectoryNames[] = {"DIR", "STORE"};
constexpr std::string_view kFileNames[] = {"A",    "B",      "CKPT",   "DST",  "FILE", "INPUT", "LOG",
                                           "PATH", "POLICY", "PREFIX", "ROWS", "SRC",  "TABLE"};

bool IsAmong(std::string_view word, std::span<const std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool IsChoice(std::string_view word) {
  const auto fits = [](char c) { return std::islower(c) || std::isdigit(c) || c == '-' || c == '_'; };
  return !word.empty() && std::all_of(word.begin(), word.end(), fits);
}

// "auto|on|off" -> its words; empty if the name is not a list of choices.
std::vector<std::string> ChoicesOf(const std::string& name) {
  const std::vector<std::string> words = CLI::detail::split(name, '|');
  if (words.size() < 2 || !std::all_of(words.begin(), words.end(), IsChoice)) return {};
  return words;
}

ValueKind KindOf(const std::string& name) {
  const std::string stem = name.substr(0, name.find('.'));  // of FILE.png
  if (IsAmong(stem, kDirectoryNames)) return ValueKind::kDirectory;
  return IsAmong(stem, kFileNames) ? ValueKind::kFile : ValueKind::kOther;
}

// "INT in [1 - 8]" -> "1 to 8".
std::string RangeOf(const std::string& check) {
  const size_t open = check.find(" in ["), dash = check.find(" - ", open), close = check.find(']', dash);
  if (open == std::string::npos || dash == std::string::npos || close == std::string::npos) return "";
  return check.substr(open + 5, dash - open - 5) + " to " + check.substr(dash + 3, close - dash - 3);
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// The type's name is "INT:INT in [1 - 8]": CLI11 appends the descriptions of the checks.
Value ValueOf(const CLI::Option& option) {
  if (!TakesValue(option)) return {};
  const std::string type = option.get_type_name();
  const std::string type_word = type.substr(0, type.find(':'));
  const std::string& text = option.get_option_text().empty() ? type_word : option.get_option_text();
  Value value;
  value.name = option.get_positional() ? option.get_name(true) : text;
  value.choices = ChoicesOf(text);
  value.kind = value.choices.empty() ? KindOf(value.name) : ValueKind::kChoice;
  if (type_word.size() < type.size()) value.range = RangeOf(type.substr(type_word.size() + 1));
  if (option.get_default_str() != "[]") value.default_value = option.get_default_str();
  return value;
}

// Long names, then short ones, since the first stands for all.
std::vector<std::string> NamesOf(const CLI::Option& option) {
  if (option.get_positional()) return {option.get_name(true)};
  std::vector<std::string> names;
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  return names;
}

std::vector<std::string> FirstNames(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(NamesOf(*option).front());
  std::sort(names.begin(), names.end());
  return names;
}

Option DescribeOption(const CLI::Option& option) {
  return {.names = NamesOf(option),
          .value = ValueOf(option),
          .description = option.get_description(),
          .group = option.get_group() == kUsualGroup ? "" : option.get_group(),
          .required = option.get_required(),
          .several_values = TakesValue(option) && option.get_expected_max() > 1 &&
                            (option.get_positional() || option.get_allow_extra_args()),
          .repeated = option.get_expected_max() > 1,
          .needs = FirstNames(option.get_needs()),
          .excludes = FirstNames(option.get_excludes())};
}

void AddOptions(const CLI::App& app, Command& command) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;                             // hidden
    if (app.get_name().empty() && option == app.get_help_ptr()) continue;  // its parent has one
    auto& list = option->get_positional() ? command.positionals : command.options;
    list.push_back(DescribeOption(*option));
    if (app.get_name().empty() && app.get_require_option_min() == 1)
      command.choose_one.push_back(list.back().names.front());
  }
}

// The footer's paragraphs are separated by blank lines; lines that begin with a blank keep their breaks. The
// paragraphs that begin "Example:" and "Exit status:" are HelpFooter's (exit_code.h).
constexpr std::string_view kExample = "Example:";
constexpr std::string_view kExitStatus = "Exit status: ";

// "0 done, 1 the two differ, 2 misuse or trouble, 75 a rank was lost."
std::vector<ExitStatus> ParseStatuses(std::string text) {
  if (text.ends_with('.')) text.pop_back();
  std::vector<ExitStatus> statuses;
  text = ", " + text;
  for (const std::string_view code : {"75", "2", "1", "0"}) {
    const std::string begin = fmt::format(", {} ", code);
    const size_t comma = text.rfind(begin);
    if (comma == text.npos) continue;
    statuses.insert(statuses.begin(), {std::string(code), text.substr(comma + begin.size())});
    text.resize(comma);
  }
  return statuses;
}

void AddNote(const std::vector<std::string>& lines, std::vector<TextBlock>& notes) {
  bool same_paragraph = false;
  for (const std::string& line : lines) {
    const bool verbatim = line.starts_with(' ');
    if (same_paragraph && notes.back().verbatim == verbatim)
      notes.back().text += (verbatim ? "\n" : " ") + line;
    else
      notes.push_back({verbatim, line});
    same_paragraph = true;
  }
}

// Lines up to the next blank one.
std::vector<std::string> TakeParagraph(std::istream& text) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (!line.empty()) lines.push_back(line);
    if (line.empty() && !lines.empty()) break;
  }
  return lines;
}

void AddFooter(const std::string& footer, Command& command) {
  std::istringstream stream(footer);
  for (auto lines = TakeParagraph(stream); !lines.empty(); lines = TakeParagraph(stream)) {
    if (lines[0] == kExample)
      for (size_t i = 1; i < lines.size(); ++i) command.examples.push_back(CLI::detail::trim_copy(lines[i]));
    else if (lines[0].starts_with(kExitStatus))
      command.exit_statuses =
          ParseStatuses(fmt::format("{}", fmt::join(lines, " ")).substr(kExitStatus.size()));
    else
      AddNote(lines, command.notes);
  }
}

Command Describe(const CLI::App& app, const std::string& parent) {
  Command command;
  command.name = parent.empty() ? app.get_name() : parent + " " + app.get_name();
  command.summary = app.get_description();
  command.needs_command = app.get_require_subcommand_min() > 0;
  AddOptions(app, command);
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (below->get_name().empty())
      AddOptions(*below, command);
    else if (!below->get_group().empty())
      command.commands.push_back(Describe(*below, command.name));
  }
  AddFooter(app.get_footer(), command);
  return command;
}

}  // namespace

Command DescribeCommand(const CLI::App& app) { return Describe(app, ""); }

}  // namespace cairn::manual
