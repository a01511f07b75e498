// `cairn verify`: checks structure, bytes and values of a checkpoint.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddVerifyCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
