// Shell completion: scripts that offer subcommands, flags, choices and paths.
//
// Each script holds the whole tree of commands as it was when the script was made; it starts no program.
#pragma once

#include <string>

#include "tools/manual/command.h"

namespace cairn::manual {

// For `source` or share/bash-completion/completions/; needs bash alone, not the package bash-completion.
std::string BashCompletion(const Command& root);

// For share/zsh/site-functions/_PROGRAM, or `source` after compinit.
std::string ZshCompletion(const Command& root);

// For share/fish/vendor_completions.d/PROGRAM.fish, or `source`.
std::string FishCompletion(const Command& root);

}  // namespace cairn::manual
