// Writes a planned checkpoint of another system: streamed, made durable, proven, and only then named.
//
// The proof reads every file once, past the page cache. The format's own reader must find each tensor, and no
// other; the sums of its values must be those of what was streamed; headers, pickles, constants and texts
// must be what was meant.
#pragma once

#include <functional>
#include <string>

#include "ckpt/model/copy_program.h"
#include "convert/foreign/stored_target.h"
#include "convert/stream/step_builder.h"

namespace cairn {

struct WriteForeignOptions {
  std::string reader;       // name of the format that finds the tensors again
  std::string directory;    // below the result's: what that reader opens; empty: the result itself
  bool sha256sums = false;  // lists the files in SHA256SUMS, for `sha256sum -c`
  TensorStreamOptions stream;
  StepBuilderOptions writer;
};

// The ring that files are written through in a window of memory.
WriteRingOptions ForeignRing(const StepBuilderOptions& writer);

// What it takes to make `target` of the source's tensors. Errors: Corrupt naming a tensor of which the source
// lacks elements, or has them twice.
Result<ProgramSize> SizeOfFiles(const CheckpointSource& source, const StoredTarget& target);

// Makes the directory `path`. Nothing of it is left after an error or an overflow. Errors: AlreadyExists;
// NoSpace before anything is written; those of TensorStream::Run; Corrupt where what is read back is not what
// was written.
Result<TransferResult> WriteForeign(FileSystem& fs, CheckpointSource& source, StoredTarget target,
                                    std::string path, const WriteForeignOptions& options);

}  // namespace cairn
