// Shell completion: subcommands, flags, choices and paths.
//
// A shell's script asks the program itself (`cairn __complete -- WORDS`), so it always fits the program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/manual/command.h"

namespace cairn::manual {

struct Candidate {
  std::string word;  // a long flag that takes a value ends with "="
  std::string description;
};

struct Completion {
  std::vector<Candidate> candidates;
  ValueKind paths = ValueKind::kNone;  // kFile or kDirectory: the shell also offers its paths
};

// Candidates for the last of `words`. The first word is the program. Only the VALUE of "--flag=VALUE" is
// completed.
Completion Complete(const Command& root, std::vector<std::string> words);

// The input of the scripts: "files", "directories" or "none", then a candidate a line, a tab before its
// description.
std::string CompletionText(const Completion& completion);

// The scripts of bash, zsh and fish for a program of this name.
std::string BashScript(std::string_view program);
std::string ZshScript(std::string_view program);
std::string FishScript(std::string_view program);

}  // namespace cairn::manual
