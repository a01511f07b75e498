// `cairn archive`: steps into a store as tar files, with proof; and back.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
