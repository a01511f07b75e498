// `cairn train`: starts cairn-train, which links libtorch so that cairn need not.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"
#include "tools/manual/command.h"

namespace cairn {

void AddTrainCommand(CLI::App& app, Verb& verb);

// Its flags and cairn-train's: the subcommand itself declares none, since it hands all on.
manual::Command DescribeTrain();

}  // namespace cairn
