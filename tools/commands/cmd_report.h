// `cairn report`: training logs into tables, plots and pages.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddReportCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
