// `cairn report rewrite` and `cairn report match`: tables and logs that are there already.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/cli/verb.h"

namespace cairn {

void AddReportRewrite(CLI::App& report, Verb& verb);
void AddReportMatch(CLI::App& report, Verb& verb);

}  // namespace cairn
