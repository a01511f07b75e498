// `cairn plan`: the fastest way to cut a model over a cluster, and what runs will take.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddPlanCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
