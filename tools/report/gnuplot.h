// Runs gnuplot.
#pragma once

#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// The standard output of gnuplot for these commands. Errors: NotFound (it is not installed), IoError with
// the first line of its message.
Result<std::string> RunGnuplot(const std::string& commands);

// A gnuplot string in double quotes. Characters that gnuplot would interpret are removed.
std::string GnuplotString(std::string_view text);

}  // namespace cairn
