// `cairn plan predict`: rows of a table, with memory and speed as the planner expects them.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddPlanPredict(CLI::App& plan, Verb& verb);

}  // namespace cairn
