// What the completion scripts of the three shells have in common.
#pragma once

#include <string>
#include <vector>

#include "tools/manual/command.h"

namespace cairn::manual {

// `from` becomes `to` wherever it stands.
std::string Replaced(std::string text, const std::string& from, const std::string& to);

// "_cairn_archive_run"
std::string FunctionName(const Command& command);

// What to offer for the positionals: kFile where any of them may be a file, kDirectory, or kOther.
ValueKind PositionalKind(const Command& command);

// Words that may stand for a positional.
std::vector<std::string> PositionalChoices(const Command& command);

// "COMMAND NAME" of each subcommand below `root`: words that lead from one command to the next.
std::vector<std::string> CommandWords(const Command& root);

// "COMMAND --flag" of each flag that takes a value: the next word is not a command.
std::vector<std::string> ValueFlags(const Command& root);

}  // namespace cairn::manual
