// `cairn archive schedule`
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveScheduleCommand(CLI::App& archive, Verb& verb);

}  // namespace cairn
