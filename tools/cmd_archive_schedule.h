// `cairn archive schedule`
#pragma once

#include <CLI/CLI.hpp>

#include "tools/verb.h"

namespace cairn {

void AddArchiveScheduleCommand(CLI::App& archive, Verb& verb);

}  // namespace cairn
