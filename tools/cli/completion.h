// Shell completion: subcommands, flags, choices and paths, from the flags that also parse.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace cairn {

// Candidates for the last of `words`, of which the first is the program, as the scripts of `cairn completion`
// read them: "files", "directories" or "none", for the paths that the shell also offers; then a candidate a
// line, a tab before its description. A long flag that takes a value ends with "="; after "--flag=" only the
// value is completed. The text of an option says its kind of value: words between bars ("auto|on|off") are
// choices; FILE, SRC, CKPT and the like are paths, DIR and STORE directories.
std::string Complete(const CLI::App& root, std::vector<std::string> words);

}  // namespace cairn
