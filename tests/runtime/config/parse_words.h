// A command line as one string, for tests.
#pragma once

#include <sstream>

#include "runtime/config/train_config.h"

namespace cairn {

inline Result<ParsedCommandLine> ParseWords(const std::string& line) {
  std::vector<std::string> words{"cairn-train"};
  std::istringstream stream(line);
  for (std::string word; stream >> word;) words.push_back(word);
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return ParseCommandLine(static_cast<int>(argv.size()), argv.data());
}

// Errors become the test's.
inline TrainConfig ConfigOf(const std::string& line) {
  Result<ParsedCommandLine> parsed = ParseWords(line);
  if (!parsed.ok()) throw std::runtime_error(parsed.status().message());
  return std::move(parsed->config);
}

inline std::string ParseErrorOf(const std::string& line) { return ParseWords(line).status().message(); }

}  // namespace cairn
