// `cairn train`: starts cairn-train, which links libtorch so that cairn need not.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddTrainCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
