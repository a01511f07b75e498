// cairn diff A B: what two checkpoints differ in.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddDiffCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
