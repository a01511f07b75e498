// Writes a planned checkpoint of another system: streamed, made durable, proven, and only then named.
//
// The proof reads every file once, past the page cache. The format's own reader must find each tensor, and no
// other. The sums of the values must equal those of the stream. Headers, pickles, constants and texts must
// equal the planned bytes.
#pragma once

#include <functional>
#include <string>

#include "convert/foreign/stored_target.h"
#include "convert/stream/step_builder.h"
#include "convert/stream/transfer.h"

namespace cairn {

struct WriteForeignOptions {
  std::string reader;       // name of the format that finds the tensors again
  std::string directory;    // that the reader opens, below the result's; empty: the result itself
  bool sha256sums = false;  // lists the files in SHA256SUMS, for `sha256sum -c`
  TensorStreamOptions stream;
  StepBuilderOptions writer;
};

// The ring that files are written through in a window of memory.
WriteRingOptions ForeignRing(const StepBuilderOptions& writer);

// The cost of making `target` from the source's tensors, without its memory. Errors: Corrupt naming a tensor
// whose elements are missing in the source, or there twice.
Result<TransferCost> CostOfFiles(const CheckpointSource& source, const StoredTarget& target);

// Makes the directory `path`. Nothing of it is left after an error or an overflow. Errors: AlreadyExists;
// NoSpace before anything is written; those of TensorStream::Run; Corrupt if the files read back differ
// from those written.
Result<TransferResult> WriteForeign(FileSystem& fs, CheckpointSource& source, StoredTarget target,
                                    std::string path, const WriteForeignOptions& options);

}  // namespace cairn
