// An identity for a checkpoint of a system that gives its runs none.
#pragma once

#include <string>
#include <string_view>

#include "convert/foreign/stored_source.h"

namespace cairn {

// 32 hex digits of the arrays' names, dtypes and shapes, the first bytes of some of them, and `about`. So it
// is the same wherever the files lie, and another for another step, or another training of the same model.
// Errors: those of reading.
Result<std::string> RunIdentity(FileSystem& fs, const std::string& directory, const StoredCatalog& catalog,
                                std::string_view about = {});

}  // namespace cairn
