// Globs of the command line and of tables: *, ? and [...]; a * takes slashes and dots, too.
#pragma once

#include <string>

namespace cairn {

bool FitsGlob(const std::string& text, const std::string& glob);

}  // namespace cairn
