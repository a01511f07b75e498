// Numbers in texts that may hold anything: names of files, environment variables, cells of tables.
#pragma once

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

namespace cairn {

// Removes the number at the start of `text` and returns it; nullopt if `text` starts with no number, or with
// one that is out of range.
template <typename Number>
std::optional<Number> TakeNumber(std::string_view& text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

// The number that all of `text` is; nullopt for any other text, and below `least`.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text,
                                  Number least = std::numeric_limits<Number>::lowest()) {
  const auto number = TakeNumber<Number>(text);
  return !number || !text.empty() || *number < least ? std::nullopt : number;
}

}  // namespace cairn
