// `cairn strip`: takes the weights out of a checkpoint for release.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddStripCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
