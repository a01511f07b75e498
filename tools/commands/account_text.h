// What became of a foreign source's bytes (convert/foreign/account.h) and of the files beside them, as the
// verbs that convert it print it.
#pragma once

#include "tools/source/open_ckpt.h"

namespace cairn {

// On stdout: the parts with their bytes, the names of what is in no tensor, and the files that stay behind.
// Prints nothing for a native step.
void PrintAccount(const OpenedSource& source);

}  // namespace cairn
