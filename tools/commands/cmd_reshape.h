// `cairn reshape`: rewrites a checkpoint for another TP, PP, DP and ZeRO.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddReshapeCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
