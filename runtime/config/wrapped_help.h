// --help whose lines fit a terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>
#include <string_view>

namespace cairn {

inline constexpr size_t kHelpWidth = 100;

// Lines of `text` that are longer than `width` are broken between words; other breaks are kept.
inline std::string Wrapped(std::string_view text, size_t width) {
  std::string wrapped;
  size_t line = 0;  // characters in it so far
  while (!text.empty()) {
    const size_t end = text.find_first_of(" \n");
    const std::string_view word = text.substr(0, end);
    if (line > 0 && line + word.size() > width) {
      while (wrapped.ends_with(' ')) wrapped.pop_back();
      wrapped += '\n';
      line = 0;
    }
    wrapped += word;
    if (end == text.npos) break;
    wrapped += text[end];
    line = text[end] == '\n' ? 0 : line + word.size() + 1;
    text.remove_prefix(end + 1);
  }
  return wrapped;
}

class WrappedHelp : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return Wrapped(CLI::Formatter::make_option_desc(option), kHelpWidth - column_width_);
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    std::stringstream out;
    CLI::detail::format_help(out, sub->get_display_name(true),
                             Wrapped(sub->get_description(), kHelpWidth - column_width_), column_width_);
    return out.str();
  }
  std::string make_footer(const CLI::App* app) const override {
    return Wrapped(CLI::Formatter::make_footer(app), kHelpWidth);
  }
  std::string make_description(const CLI::App* app) const override {
    return Wrapped(CLI::Formatter::make_description(app), kHelpWidth);
  }
};

}  // namespace cairn
