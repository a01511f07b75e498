// An option whose value is one of a few words.
//
// CLI11's own transformers print the enum's numbers in messages instead of the words.
#pragma once

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/cli/hints.h"

namespace cairn {

// "; did you mean hf?", also for other names of the same choice; or nothing.
inline std::string ChoiceHint(const std::vector<std::string>& words, const std::string& given) {
  constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
      {"huggingface", "hf"},  {"hugging-face", "hf"},       {"hugging_face", "hf"},
      {"transformers", "hf"}, {"float16", "fp16"},          {"half", "fp16"},
      {"bfloat16", "bf16"},   {"float32", "fp32"},          {"float", "fp32"},
      {"cairn", "native"},    {"torch.distributed", "dcp"}, {"deepspeed", "megatron-deepspeed"},
      {"md", "markdown"}};
  for (const auto& [other, word] : kOtherNames)
    if (other == given && std::ranges::find(words, word) != words.end()) return Hint(words, word);
  return Hint(words, given);
}

// `target` is an Enum, or an optional one; it must outlive the parsing.
template <typename Enum, typename Target>
CLI::Option* AddChoice(CLI::App& verb, const std::string& name, Target& target,
                       const std::string& description,
                       const std::vector<std::pair<std::string, Enum>>& choices) {
  std::vector<std::string> words;
  for (const auto& [word, value] : choices) words.push_back(word);
  const auto is_choice = [words](const std::string& input) {
    const bool known = std::find(words.begin(), words.end(), input) != words.end();
    return known ? std::string()
                 : fmt::format("'{}' is not one of {}{}", input, fmt::join(words, ", "),
                               ChoiceHint(words, input));
  };
  const auto set = [&target, choices](const std::string& input) {
    for (const auto& [word, value] : choices)
      if (word == input) target = value;
  };
  return verb.add_option_function<std::string>(name, set, description)
      ->check(is_choice)
      ->option_text(fmt::format("{}", fmt::join(words, "|")));
}

enum class TableFormat { kTable, kMarkdown, kCsv, kJson };

// --format and --json.
inline void AddTableFormat(CLI::App& verb, TableFormat& format) {
  AddChoice<TableFormat>(verb, "--format", format, "output format; default: table, for terminals",
                         {{"table", TableFormat::kTable},
                          {"md", TableFormat::kMarkdown},
                          {"csv", TableFormat::kCsv},
                          {"json", TableFormat::kJson}});
  verb.add_flag_callback(
      "--json", [&format] { format = TableFormat::kJson; }, "the same as --format json");
}

}  // namespace cairn
