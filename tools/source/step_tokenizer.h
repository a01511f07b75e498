// The tokenizer that is copied with the weights.
#pragma once

#include "ckpt/run/tokenizer_files.h"
#include "tools/source/open_ckpt.h"

namespace cairn {

// The tokenizer next to the source, with licence, code and what loads an adapter or quantized weights; for a
// run of another system, next to it or in the step. Errors: InvalidArgument as in TokenizerOf() of a
// directory.
Result<FileCopies> TokenizerOf(const OpenedSource& opened);

// The same without the tokenizer.
Result<FileCopies> LicenceAndCode(const OpenedSource& opened);

}  // namespace cairn
