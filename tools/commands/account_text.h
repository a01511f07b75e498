// What became of a foreign source's bytes (convert/foreign/account.h), as the verbs that take them over print
// it.
#pragma once

#include "ckpt/model/source.h"

namespace cairn {

// Two lines at most on stdout: the parts with their bytes, then the names of what is in no tensor. Prints
// nothing for a native step.
void PrintAccount(const CheckpointSource& source);

}  // namespace cairn
