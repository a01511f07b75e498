// Reads the configuration in the name of a log or script: "61B-ds-zero1-mbs-2-pp16-dp-1-gas-512.out".
#pragma once

#include <string_view>

#include "tools/report/run_config.h"

namespace cairn {

// Words are letters and a number, with or without one of -_= between (pp16, dp-1, zero_1, gas=512), or a
// number and letters (61B, 350M, 64gpus, 16nodes). Others are skipped, and so are directories and the last
// suffix.
RunConfig ConfigFromName(std::string_view path);

// The name without directories and without the suffix .out, .log, .txt, .err, .slurm, .sbatch or .sh.
std::string_view StemOf(std::string_view path);

}  // namespace cairn
