// `cairn archive`: stores steps as tar files, proves them, and restores them.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
