// `cairn manual` and `cairn completion`: manual pages and shell completion, made from the program's own
// flags.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddManualCommand(CLI::App& app, Verb& verb);
void AddCompletionCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
