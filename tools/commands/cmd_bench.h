// `cairn bench`: the machine's own limits, and ours beside them, in one run.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddBenchCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
