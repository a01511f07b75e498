// Globs of the command line and of tables: *, ? and [...]; a * takes slashes and dots, too.
#pragma once

#include <span>
#include <string>

namespace cairn {

bool FitsGlob(const std::string& text, const std::string& glob);
bool FitsAnyGlob(const std::string& text, std::span<const std::string> globs);

}  // namespace cairn
