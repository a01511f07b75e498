// `cairn convert`: any format that can be read to any that can be written.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddConvertCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
