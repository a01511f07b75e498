// The tokenizer of a model: files that lie beside its weights, and in RUN/tokenizer of a native run, whose
// steps hold tensors alone.
#pragma once

#include <string>

#include "ckpt/source.h"
#include "convert/file_copies.h"

namespace cairn {

// Of a run: its directory of tokenizer files.
inline constexpr const char* kRunTokenizerDir = "tokenizer";

// The tokenizer's files in `directory`. A release must not carry what lies elsewhere on this machine. Errors:
// NotFound where there are none; InvalidArgument where one leads out of the model's own directory, or is not
// a file.
Result<FileCopies> TokenizerFiles(FileSystem& fs, const std::string& directory);

// Those beside the source, else those of the run that the source is a step of; empty where there are none.
// Errors: InvalidArgument as above.
Result<FileCopies> TokenizerOf(FileSystem& fs, const CheckpointSource& source);

// Copies the source's tokenizer into RUN/tokenizer, unless there is one already. What stands in the way is a
// note on stderr: the step is there all the same.
void KeepTokenizer(FileSystem& fs, const CheckpointSource& source, const std::string& run_dir);

}  // namespace cairn
