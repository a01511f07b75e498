// Suggestions for an unknown word.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/base/nearest_name.h"

namespace cairn {

// "; did you mean LEAD WORD?" with the nearest of `words`, or "; OTHERWISE", or nothing.
inline std::string Hint(const std::vector<std::string>& words, std::string_view given,
                        std::string_view otherwise = "", std::string_view lead = "") {
  const std::string nearest = NearestName(words, given);
  if (!nearest.empty()) return fmt::format("; did you mean {}{}?", lead, nearest);
  return otherwise.empty() ? "" : fmt::format("; {}", otherwise);
}

// "see cairn VERB --help", for the verb that was given.
std::string SeeHelp(const CLI::App& app);
// The error for words that the parser did not accept; empty if it accepted all.
std::string UnknownWord(const CLI::App& app);

}  // namespace cairn
