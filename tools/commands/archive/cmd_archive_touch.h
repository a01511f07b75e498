// `cairn archive touch`: access times of now, instead of copies.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddArchiveTouchCommand(CLI::App& archive, Verb& verb);

}  // namespace cairn
