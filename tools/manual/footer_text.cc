#include "tools/manual/footer_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

namespace cairn::manual {
namespace {

constexpr std::string_view kExample = "Example:";
constexpr std::string_view kExitStatus = "Exit status: ";

std::string Trimmed(const std::string& line) {
  const size_t first = line.find_first_not_of(' ');
  return first == std::string::npos ? "" : line.substr(first);
}

// "0 done, 1 the two differ, 2 misuse or trouble.": each status but the first follows ", ".
std::vector<ExitStatus> ParseStatuses(std::string text) {
  if (text.ends_with('.')) text.pop_back();
  std::vector<ExitStatus> statuses;
  char code = '0', next = '0';
  for (size_t end = 0; end != std::string::npos; code = next) {
    end = std::string::npos;
    for (next = code + 1; next <= '2'; ++next) {
      end = text.find(fmt::format(", {} ", next));
      if (end != std::string::npos) break;
    }
    statuses.push_back({std::string(1, code), text.substr(2, end - 2)});
    if (end != std::string::npos) text.erase(0, end + 2);
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

}  // namespace

FooterText ParseFooter(const std::string& footer) {
  FooterText text;
  std::istringstream stream(footer);
  for (auto lines = TakeParagraph(stream); !lines.empty(); lines = TakeParagraph(stream)) {
    if (lines[0] == kExample) {
      for (size_t i = 1; i < lines.size(); ++i) text.examples.push_back(Trimmed(lines[i]));
      continue;
    }
    if (lines[0].starts_with(kExitStatus))
      text.exit_statuses = ParseStatuses(fmt::format("{}", fmt::join(lines, " ")).substr(kExitStatus.size()));
    else
      AddNote(lines, text.notes);
  }
  return text;
}

}  // namespace cairn::manual
