// Writes a checkpoint in another form: as a native step, or as the files of another training system.
//
// A transfer is planned once, without reading a tensor. Cost() tells what it takes. Run() streams each source
// tensor once, verified, through a fixed window of memory, makes the result durable, reads it back, compares
// the sums of the values, and only then gives the result its name. reshape, strip, convert and `archive
// restore` differ in the transfer that they plan (convert/verbs).
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "ckpt/io/file_copies.h"
#include "ckpt/model/copy_program.h"
#include "ckpt/run/rank_team.h"
#include "ckpt/step/seal.h"
#include "convert/foreign/account.h"
#include "convert/foreign/stored_target.h"
#include "convert/stream/quantization.h"
#include "convert/stream/step_plan.h"
#include "convert/stream/tensor_stream.h"

namespace cairn {

struct WriterOptions {
  // For the whole job, apart from the program itself: half of it for the reader's cache, a quarter for write
  // buffers, the rest for blocks. Kept from 64 MiB on; below, one chunk and a few buffers are needed anyway.
  uint64_t max_memory = kDefaultMaxMemory;
  int jobs = 2;  // threads that write
  Direct direct = Direct::kAuto;
  FileCopies beside = {};  // files of a step beside its tensors: its tokenizer
};

// A native step (step_writer.cc).
struct StepTarget {
  StepInfo info;
  std::vector<WrittenTensor> tensors;
  StepPlan plan;         // of these tensors
  std::string job = {};  // equal for equal sources and targets only; empty: no run resumes another
  bool resume = false;   // adopts what a killed run of the same job left, and keeps finished units on errors
  bool read_back = true;
  uint64_t unit_bytes = 0;  // of tensors, at least; 0: by their sum. The same on all ranks
  RankTeam team;
};

// The files of another system (file_writer.cc).
struct FilesTarget {
  StoredTarget files;
  std::string reader;          // name of the format that finds the tensors again
  std::string directory = {};  // that the reader opens, below the result's; empty: the result itself
  bool sha256sums = false;     // lists the files in SHA256SUMS, for `sha256sum -c`
};

struct TransferCost {
  ProgramSize plan;          // of the copies from the source's regions to the target's
  uint64_t read_bytes = 0;   // of the source's tensors
  uint64_t file_bytes = 0;   // of the result, about
  uint64_t moved_bytes = 0;  // through memory in all, reading back included; progress counts them
  uint64_t files = 0;        // of the result
  uint64_t peak_memory = 0;  // about
};

struct TransferResult {
  std::string path;                         // of the new step, or of the directory of files
  bool overflowed = false;                  // finite values became infinite: nothing was kept
  std::vector<std::string> unlike_masters;  // weights of the source, if compare_masters
  std::vector<TransferredTensor> tensors;   // the first Transfer::reported of them
  std::vector<std::string> notes;           // about the result, for its user
  std::vector<std::string> left_behind;     // values of the source that it lacks (account.h)
  Fingerprints fingerprints;                // of the source's tensors that were read
  Quantization quantization = {};           // of weights that were quantized on the way
  uint64_t bytes_read = 0;                  // of the source, by all ranks
  uint64_t bytes_written = 0;               // of all files
  uint64_t bytes_resumed = 0;               // of tensors that an earlier run had written; by this rank
  uint64_t files = 0;
};

struct Transfer {
  CheckpointSource& source;
  std::variant<StepTarget, FilesTarget> target;
  WriterOptions writer;
  CastOptions cast;
  bool compare_masters = false;  // of the source with the weights that they round to (master_proof.h)
  size_t reported = 0;           // tensors whose counts the result has
  std::vector<std::string> notes;
  std::vector<std::string> left_behind;        // values of the source that the result lacks
  std::function<Quantization()> quantization;  // if the source quantizes another one, which it owns
  std::function<void(uint64_t)> progress =
      {};  // gets the bytes of TransferCost::moved_bytes done; one at a time

  Transfer(CheckpointSource& from, std::variant<StepTarget, FilesTarget> to, WriterOptions how = {})
      : source(from),
        target(std::move(to)),
        writer(std::move(how)),
        left_behind(ValuesLeftBehind(from, tensors())) {}

  const std::vector<WrittenTensor>& tensors() const;

  // Errors: Corrupt naming a tensor whose elements are missing in the source, or stored twice.
  Result<TransferCost> Cost() const;
  // Writes the directory `path`, or the step-N of the source below it. Only rank 0 of a team gets more than
  // the path. Nothing of the result is left after an overflow or an error, or with `resume` a partial
  // directory that can be resumed. Errors: AlreadyExists; NoSpace before anything is written; InvalidArgument
  // naming a tensor that overflows, if that is refused; Corrupt (a source byte that does not match its
  // digest, a result that is not what was written); Aborted (another rank failed).
  Result<TransferResult> Run(FileSystem& fs, std::string path) const;
  // Reads and casts all tensors and keeps nothing: the counts of Run().
  Result<TransferResult> CountOnly() const;
};

}  // namespace cairn
