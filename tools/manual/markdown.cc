// Options are a list, not a table: names and descriptions are too long for columns, and a list reads as plain
// text too. Code spans and blocks are taken as they stand; all other text is escaped.
#include "tools/manual/markdown.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cairn::manual {
namespace {

constexpr std::string_view kGenerated =
    "<!-- Made from the program's flags: cairn manual --format markdown --output docs/manual -->\n";

std::string CodeSpan(const std::string& text) { return "`" + text + "`"; }

std::string OptionItem(const Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back(CodeSpan(name));
  if (const std::string value = ValueText(option); !value.empty())
    names.back() = CodeSpan(option.names.back() + " " + value);
  return fmt::format("- {}: {}\n", fmt::join(names, ", "), MarkdownText(BodyText(option)));
}

std::string CodeBlock(const std::string& lines, const std::string& language) {
  return fmt::format("```{}\n{}\n```\n\n", language, lines);
}

std::string OptionSections(const Command& command) {
  std::string text;
  if (!command.positionals.empty()) text += "## Arguments\n\n";
  for (const Option& positional : command.positionals)
    text += fmt::format("- {}: {}\n", CodeSpan(ValueText(positional)), MarkdownText(BodyText(positional)));
  if (!command.positionals.empty()) text += "\n";
  for (const std::string& group : GroupsOf(command)) {
    text += fmt::format("## {}\n\n", group.empty() ? "Options" : MarkdownText(group));
    for (const Option& option : command.options)
      if (option.group == group) text += OptionItem(option);
    text += "\n";
  }
  if (!command.choose_one.empty())
    text += fmt::format("Give exactly one of `{}`.\n\n", fmt::join(command.choose_one, "`, `"));
  return text;
}

std::string CommandSection(const Command& command) {
  if (command.commands.empty()) return "";
  std::string text = "## Commands\n\n";
  for (const Command& below : command.commands)
    text += fmt::format("- [`{}`]({}): {}\n", below.name, MarkdownFile(below), MarkdownText(below.summary));
  return text + "\n";
}

std::string NoteSection(const Command& command) {
  std::string text;
  for (const TextBlock& block : command.notes)
    text += block.verbatim ? CodeBlock(block.text, "text") : MarkdownText(block.text) + "\n\n";
  return text;
}

std::string EndSections(const Command& command) {
  std::string text;
  if (!command.examples.empty())
    text += "## Example\n\n" + CodeBlock(fmt::format("{}", fmt::join(command.examples, "\n")), "sh");
  if (!command.exit_statuses.empty()) text += "## Exit status\n\n";
  for (const ExitStatus& status : command.exit_statuses)
    text += fmt::format("- `{}`: {}\n", status.code, MarkdownText(status.meaning));
  return text;
}

}  // namespace

// Text between two ` is code in Markdown too. Python-Markdown, which renders docs/, knows no backslash
// before < and >.
std::string MarkdownText(const std::string& text) {
  std::string safe;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (const size_t end = c == '`' ? text.find('`', i + 1) : std::string::npos; end != std::string::npos) {
      safe += text.substr(i, end + 1 - i);  // code already
      i = end;
      continue;
    }
    if (c == '<' || c == '>' || c == '&') {
      safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;";
      continue;
    }
    if (std::string_view("\\`*_[]").find(c) != std::string_view::npos) safe += '\\';
    safe += c;
  }
  return safe;
}

std::string MarkdownFile(const Command& command) {
  const std::string page = PageName(command);
  const size_t program = page.find('-');
  return (program == std::string::npos ? "index" : page.substr(program + 1)) + ".md";
}

std::string MarkdownPage(const Command& command) {
  std::string page(kGenerated);
  page += fmt::format("# {}\n\n{}\n\n", command.name, MarkdownText(command.summary));
  page += CodeBlock(fmt::format("{} {}", command.name, fmt::join(SynopsisWords(command), " ")), "text");
  page += NoteSection(command) + CommandSection(command) + OptionSections(command) + EndSections(command);
  while (page.ends_with("\n\n")) page.pop_back();
  return page;
}

}  // namespace cairn::manual
