// Writes a planned checkpoint of another system: streamed, made durable, proven, and only then named.
//
// The proof reads every file once, past the page cache. The format's own reader must find each tensor, and no
// other; the sums of its values must equal those of the stream; headers, pickles, constants and texts must be
// as planned.
#pragma once

#include <functional>
#include <string>

#include "ckpt/model/copy_program.h"
#include "convert/foreign/stored_target.h"
#include "convert/stream/step_builder.h"

namespace cairn {

struct WriteForeignOptions {
  std::string reader;       // name of the format that reads the tensors back
  std::string directory;    // that the reader opens, below the result; empty: the result itself
  bool sha256sums = false;  // lists the files in SHA256SUMS, for `sha256sum -c`
  TensorStreamOptions stream;
  StepBuilderOptions writer;
};

struct WrittenFiles {
  std::string path;
  bool overflowed = false;         // and not saturated: nothing was kept
  std::vector<CastCounts> counts;  // of each of the target's tensors
  Digest source_fingerprint{};     // over the tensors that were read
  uint64_t bytes = 0;
  uint64_t files = 0;
};

// The ring for writing files in a window of memory.
WriteRingOptions ForeignRing(const StepBuilderOptions& writer);

// The copies that make `target` from the source's tensors. Errors: Corrupt naming a tensor whose elements the
// source lacks or has twice.
Result<ProgramSize> SizeOfFiles(const CheckpointSource& source, const StoredTarget& target);

// Makes the directory `path`. Nothing of it is left after an error or an overflow. Errors: AlreadyExists;
// NoSpace before anything is written; those of TensorStream::Run; Corrupt if the files read back differ from
// what was written.
Result<WrittenFiles> WriteForeign(FileSystem& fs, CheckpointSource& source, StoredTarget target,
                                  std::string path, const WriteForeignOptions& options);

}  // namespace cairn
