// Flags of `cairn report` for facts that logs lack.
#pragma once

#include <CLI/CLI.hpp>

#include "tools/report/run_summary.h"

namespace cairn {

// A flag for each count of RunConfig (--gpus, --seq-length, ...), --size, --recompute and --precision.
// `config` must outlive the parsing.
void AddConfigFlags(CLI::App& command, RunConfig& config);

// --formula.
void AddFormula(CLI::App& command, TflopsFormula& formula, const std::string& description);

}  // namespace cairn
