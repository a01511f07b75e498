// Section by section, in man-pages(7)'s order: NAME, SYNOPSIS, DESCRIPTION, COMMANDS, ARGUMENTS, OPTIONS,
// EXIT STATUS, EXAMPLES, SEE ALSO. A section that would be empty is left out.
#include "tools/manual/roff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace cairn::manual {
namespace {

std::string UpperCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string RoffBold(const std::string& text) { return "\\fB" + RoffText(text) + "\\fR"; }
std::string RoffItalic(const std::string& text) { return "\\fI" + RoffText(text) + "\\fR"; }

// "cairn-reshape(1)"
std::string Reference(const std::string& page) { return RoffBold(page) + "(1)"; }

class RoffWriter {
 public:
  void Line(const std::string& line) { text_ += line + "\n"; }
  void Section(const std::string& title) { Line(".SH " + title); }
  void Tagged(const std::string& tag, const std::string& body) {
    Line(".TP");
    Line(tag);
    Line(body);
  }
  void Verbatim(const std::string& lines) {
    Line(".PP");
    Line(".nf");
    std::istringstream stream(lines);
    for (std::string line; std::getline(stream, line);) Line(RoffText(line));
    Line(".fi");
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void WriteSynopsis(const Command& command, RoffWriter& page) {
  page.Section("SYNOPSIS");
  std::string line = RoffBold(command.name);
  for (const std::string& word : SynopsisWords(command)) line += " " + RoffText(word);
  page.Line(line);
}

void WriteNotes(const Command& command, RoffWriter& page) {
  page.Section("DESCRIPTION");
  page.Line(RoffText(command.summary + (command.summary.ends_with('.') ? "" : ".")));
  for (const TextBlock& block : command.notes) {
    if (block.verbatim) {
      page.Verbatim(block.text);
      continue;
    }
    page.Line(".PP");
    page.Line(RoffText(block.text));
  }
}

void WriteOption(const Option& option, RoffWriter& page) {
  std::vector<std::string> names;
  for (const std::string& name : option.names) names.push_back(RoffBold(name));
  if (!ValueText(option).empty()) names.back() += " " + RoffItalic(ValueText(option));
  page.Tagged(fmt::format("{}", fmt::join(names, ", ")), RoffText(BodyText(option)));
}

void WriteOptions(const Command& command, RoffWriter& page) {
  if (!command.positionals.empty()) page.Section("ARGUMENTS");
  for (const Option& positional : command.positionals)
    page.Tagged(RoffItalic(ValueText(positional)), RoffText(BodyText(positional)));
  if (!command.options.empty()) page.Section("OPTIONS");
  for (const std::string& group : GroupsOf(command)) {
    if (!group.empty()) page.Line(".SS " + RoffText(group));
    for (const Option& option : command.options)
      if (option.group == group) WriteOption(option, page);
  }
  if (command.choose_one.empty()) return;
  page.Line(".PP");
  page.Line(RoffText(fmt::format("Give exactly one of {}.", fmt::join(command.choose_one, ", "))));
}

void WriteCommands(const Command& command, RoffWriter& page) {
  if (command.commands.empty()) return;
  page.Section("COMMANDS");
  for (const Command& below : command.commands)
    page.Tagged(Reference(PageName(below)), RoffText(below.summary));
}

void WriteEnd(const Command& command, RoffWriter& page) {
  if (!command.exit_statuses.empty()) page.Section("EXIT STATUS");
  for (const ExitStatus& status : command.exit_statuses)
    page.Tagged(RoffBold(status.code), RoffText(status.meaning));
  if (!command.examples.empty()) page.Section("EXAMPLES");
  for (const std::string& example : command.examples) page.Verbatim(example);
}

// Names the parent commands, if any.
void WriteSeeAlso(const Command& command, RoffWriter& page) {
  std::vector<std::string> pages;
  std::string name = command.name;
  for (size_t end = name.rfind(' '); end != std::string::npos; end = name.rfind(' ')) {
    name.resize(end);
    pages.insert(pages.begin(), Reference(PageName({.name = name})));
  }
  if (pages.empty()) return;
  page.Section("SEE ALSO");
  page.Line(fmt::format("{}", fmt::join(pages, ", ")));
}

// UTF-8 of up to four bytes as one \[uXXXX]; `at` moves to its last byte.
std::string CodePoint(const std::string& text, size_t& at) {
  const unsigned char first = text[at];
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  uint32_t code = first & (0x3f >> more);
  for (int i = 0; i < more && at + 1 < text.size(); ++i) code = code << 6 | (text[++at] & 0x3f);
  return fmt::format("\\[u{:04X}]", code);
}

}  // namespace

std::string RoffText(const std::string& text) {
  static const std::map<char, std::string> kEscapes = {{'\\', "\\(rs"}, {'-', "\\-"},   {'\'', "\\(aq"},
                                                       {'`', "\\(ga"},  {'^', "\\(ha"}, {'~', "\\(ti"},
                                                       {'"', "\\(dq"},  {'|', "|\\:"}};
  std::string roff = text.starts_with('.') ? "\\&" : "";
  for (size_t i = 0; i < text.size(); ++i) {
    const auto escape = kEscapes.find(text[i]);
    if (static_cast<unsigned char>(text[i]) >= 0x80)
      roff += CodePoint(text, i);
    else
      roff += escape == kEscapes.end() ? std::string(1, text[i]) : escape->second;
  }
  return roff;
}

std::string RoffPage(const Command& command, const std::string& version) {
  RoffWriter page;
  page.Line(fmt::format(".TH {} 1 \"\" \"{}\" \"Cairn manual\"", RoffText(UpperCase(PageName(command))),
                        RoffText(version)));
  page.Line(".ad l");
  page.Line(".nh");
  page.Section("NAME");
  page.Line(RoffText(PageName(command)) + " \\- " + RoffText(command.summary));
  WriteSynopsis(command, page);
  WriteNotes(command, page);
  WriteCommands(command, page);
  WriteOptions(command, page);
  WriteEnd(command, page);
  WriteSeeAlso(command, page);
  return page.Take();
}

}  // namespace cairn::manual
