// The tokenizer that goes where the weights go.
#pragma once

#include "ckpt/run/tokenizer_files.h"
#include "tools/source/open_ckpt.h"

namespace cairn {

// That beside the source, with licence and code; of another system's run, beside it or in the step. Errors:
// InvalidArgument as TokenizerOf() of a directory.
Result<FileCopies> TokenizerOf(const OpenedSource& opened);

// Licence and code alone.
Result<FileCopies> LicenceAndCode(const OpenedSource& opened);

// The tokenizer for a native step. One that cannot be taken is a note on stderr, for the step is as good
// without.
FileCopies TokenizerForStep(const OpenedSource& opened);

}  // namespace cairn
