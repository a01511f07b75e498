// `cairn fingerprint`: one number for a checkpoint's values, whatever their topology.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddFingerprintCommand(CLI::App& app, Verb& verb);

}  // namespace cairn
