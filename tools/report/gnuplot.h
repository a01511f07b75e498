// Runs gnuplot.
#pragma once

#include <string>

#include "ckpt/base/status.h"

namespace cairn {

// What gnuplot writes on its standard output for these commands. Errors: NotFound (it is not installed),
// IoError with its first line of complaint.
Result<std::string> RunGnuplot(const std::string& commands);

// As a string of gnuplot's in double quotes: what it or its enhanced text would obey is taken out of its
// meaning.
std::string GnuplotString(std::string_view text);

}  // namespace cairn
