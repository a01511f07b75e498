// The walk over CLI11's tree of options and subcommands.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/manual/command.h"

namespace cairn::manual {

// `app` and all below it. Hidden options and subcommands are left out.
//
// The text of the help has what CLI11 does not know: a value name of lower-case words between bars
// ("auto|on|off") lists the choices; FILE, SRC, CKPT and the like are paths, DIR and STORE directories; the
// footer ends with the paragraphs "Example:" and "Exit status:" of HelpFooter (exit_code.h).
Command DescribeCommand(const CLI::App& app);

}  // namespace cairn::manual
