// Takes tars and bundles out of a store, with all that belongs to them.
#pragma once

#include <string>
#include <string_view>

#include "tools/archive/store/store.h"

namespace cairn {

inline constexpr std::string_view kDeletingSuffix = ".deleting";

// Takes a tar or a bundle out of the store: its (first) file steps aside, so that a killed prune is ended by
// the next run (CleanStore). Requires the lock. Errors: InvalidArgument if the file is a link.
Status RemoveMember(const Store& store, const std::string& file);
// What is left to do then: sidecar, parity and pieces go for good, and then what stepped aside.
Status EndRemoval(const Store& store, const std::string& file);

}  // namespace cairn
