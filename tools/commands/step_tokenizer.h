// The tokenizer that comes along into a native step.
#pragma once

#include "ckpt/model/source.h"
#include "ckpt/run/tokenizer_files.h"

namespace cairn {

// That of the source; one that cannot be taken is a note on stderr, for the step is as good without.
FileCopies TokenizerForStep(FileSystem& fs, const CheckpointSource& source);

}  // namespace cairn
