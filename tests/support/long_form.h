// True under CAIRN_LONG=1 (`scripts/test --long`): a property test then tries all that it can, otherwise a
// sample.
#pragma once

#include <cstdlib>

namespace cairn {

inline bool IsLongForm() { return std::getenv("CAIRN_LONG") != nullptr; }

}  // namespace cairn
