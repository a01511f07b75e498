// `cairn inspect`: a checkpoint's tensors, slices and values.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddInspectCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
