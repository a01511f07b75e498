#include "runtime/config/ignored_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "ckpt/base/split_text.h"
#include "config_texts.h"

namespace cairn {
namespace {

// The rows of ignored.txt, "NAME VALUES: reason".
std::vector<IgnoredFlag> ReadRows() {
  std::vector<IgnoredFlag> rows;
  for (const std::string_view row : TextRows(kIgnoredText)) {
    const size_t colon = row.find(": ");
    const std::string_view head = row.substr(0, colon);
    const size_t space = std::min(head.find(' '), head.size());
    rows.push_back(
        {head.substr(0, space), head.substr(std::min(space + 1, head.size())), row.substr(colon + 2)});
  }
  return rows;
}

// The value that would have had an effect, else "".
std::string ValueWithEffect(const IgnoredFlag& flag, const std::vector<std::string>& given) {
  if (flag.values.empty() || flag.values.starts_with('*')) return "";
  const std::vector<std::string_view> without = SplitText(flag.values, '|');
  for (const std::string& value : given)
    if (std::ranges::find(without, value) == without.end()) return value;
  return "";
}

}  // namespace

std::span<const IgnoredFlag> IgnoredFlags() {
  static const std::vector<IgnoredFlag> kRows = ReadRows();
  return kRows;
}

Result<std::string> NoteFor(const IgnoredFlag& flag, const std::vector<std::string>& values) {
  if (const std::string value = ValueWithEffect(flag, values); !value.empty())
    return InvalidArgument("--{} {} is not supported; only {} is", flag.name, value, flag.values);
  return fmt::format("--{} has no effect here: {}", flag.name, flag.reason);
}

void DeclareIgnoredFlags(CLI::App& app) {
  for (const IgnoredFlag& flag : IgnoredFlags()) {
    const std::string name = fmt::format("--{}", flag.name);
    if (app.get_option_no_throw(name) != nullptr) continue;  // it has an effect now
    CLI::Option* option = flag.values.empty() ? app.add_flag(name) : app.add_option(name);
    if (flag.values == "*...")
      option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
    else
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    option->group("");  // not in the help
  }
}

Result<std::vector<std::string>> NotesOnIgnoredFlags(const CLI::App& app) {
  std::vector<std::string> notes;
  for (const IgnoredFlag& flag : IgnoredFlags()) {
    const CLI::Option* option = app.get_option(fmt::format("--{}", flag.name));
    if (option->count() == 0 || !option->get_group().empty()) continue;
    CAIRN_ASSIGN_OR_RETURN(notes.emplace_back(), NoteFor(flag, option->results()));
  }
  return notes;
}

}  // namespace cairn
