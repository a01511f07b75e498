// `cairn ls`: runs and steps, and how they are, from metadata alone.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddLsCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
