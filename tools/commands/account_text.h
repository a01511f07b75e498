// Prints the account of a foreign source's bytes (convert/foreign/account.h) and of the files beside them.
#pragma once

#include "tools/source/open_ckpt.h"

namespace cairn {

// On stdout: the parts with their bytes, the names of parts in no tensor, and the files that are left behind.
// Prints nothing for a native step.
void PrintAccount(const OpenedSource& source);

}  // namespace cairn
