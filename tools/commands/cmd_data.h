// `cairn data`: text to Megatron's indexed datasets.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddDataCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
