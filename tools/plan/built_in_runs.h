// The runs that are compiled in: a100-runs.csv beside this file, as it is.
#pragma once

#include <string_view>

namespace cairn {

extern const std::string_view kBuiltInRuns;

}  // namespace cairn
