// A subcommand gives main its options set up on a CLI::App, and the function to run once they are
// parsed.
//
// A verb prints facts to stdout and returns an ExitCode; a Status that it returns instead becomes one line on
// stderr and exit status 2, in main.cc only.
#pragma once

#include <functional>

#include "ckpt/base/status.h"

namespace cairn {

using Verb = std::function<Result<int>()>;

}  // namespace cairn
