// An option whose value is one of a few words.
//
// CLI11's own transformers print the enum's numbers in messages, and leave them where the words were given.
#pragma once

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

// `target` is an Enum, or an optional one; it must outlive the parsing.
template <typename Enum, typename Target>
CLI::Option* AddChoice(CLI::App& verb, const std::string& name, Target& target,
                       const std::string& description,
                       const std::vector<std::pair<std::string, Enum>>& choices) {
  std::vector<std::string> words;
  for (const auto& [word, value] : choices) words.push_back(word);
  const auto is_choice = [words](const std::string& input) {
    const bool known = std::find(words.begin(), words.end(), input) != words.end();
    return known ? std::string() : fmt::format("'{}' is not one of {}", input, fmt::join(words, ", "));
  };
  const auto set = [&target, choices](const std::string& input) {
    for (const auto& [word, value] : choices)
      if (word == input) target = value;
  };
  return verb.add_option_function<std::string>(name, set, description)
      ->check(is_choice)
      ->option_text(fmt::format("{}", fmt::join(words, "|")));
}

}  // namespace cairn
