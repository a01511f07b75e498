// The stream of every verb that writes tensors: blocks of a source, verified as they are read, cast if the
// written type differs, summed on both sides, and passed to a target.
//
// The target's data is proven by comparing the sums of the values read back with those of the values written.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ckpt/codec/cast.h"
#include "convert/stream/fingerprint.h"
#include "convert/stream/master_proof.h"

namespace cairn {

// A tensor to write: its source, and the type that is written.
struct WrittenTensor {
  uint32_t source = 0;    // into the source's catalog
  TensorEntry entry;      // as the reader of the target finds it
  bool read_back = true;  // false: the reader finds it through another tensor
};

// The source's tensors that they are written from, each once, in catalog order; with `masters` the other one
// of each pair too.
std::set<uint32_t> SourcesOf(std::span<const WrittenTensor> tensors, const MasterSums* masters);

// Where blocks go: the shards of a native step, or another system's files.
class BlockTarget {
 public:
  virtual ~BlockTarget() = default;
  // The next block of written tensor `block.tensor`, in row-major order, tensor after tensor. Tensors that
  // are written from the same source tensor come in turns, and so do others that are to.
  virtual Status Write(const Block& block) = 0;
  // The tensors so far are whole.
  virtual Status EndTensors() { return OkStatus(); }
};

struct CastOptions {
  OnOverflow on_overflow = OnOverflow::kInfinity;
  // True: a finite value that would become infinite ends the stream. False: such values are counted.
  bool refuse_overflow = false;
};

// A tensor that was written, and how its values changed.
struct TransferredTensor {
  std::string name;  // canonical, of the source
  Role source = Role::kMaster;
  Dtype from = Dtype::kF32;
  Dtype to = Dtype::kF16;
  CastCounts counts;
};

// A function that adds up the bytes that it gets and passes the sum on, for progress. Copies share the sum,
// and any thread may call them. Empty if `progress` is.
std::function<void(uint64_t)> Accumulated(std::function<void(uint64_t)> progress);

class TensorStream {
 public:
  // `source` and `tensors` must outlive the stream. `block_bytes`: of the source at a time. `advance` gets
  // the bytes of each block as they are read; may be empty. `compare_masters`: reads the weight with each
  // master, and the master with each weight, and compares them. `by_turns`: sets of tensors of one shape that
  // come in turns, block by block.
  TensorStream(CheckpointSource& source, const std::vector<WrittenTensor>& tensors, uint64_t block_bytes,
               const CastOptions& options, bool compare_masters, std::function<void(uint64_t)> advance,
               const std::map<uint32_t, std::vector<uint32_t>>& by_turns = {});

  // Streams some of the tensors, by their numbers, in the order of the source. Errors: those of reading
  // and of `target`; InvalidArgument naming a tensor that overflows, if that is refused.
  Status Run(std::span<const uint32_t> tensors, BlockTarget& target);
  Status RunAll(BlockTarget& target);

  // True if finite values became infinite and the options do not saturate them.
  bool overflowed() const;
  // The counts of the first tensors so far. Values that keep their type are only counted as elements.
  std::vector<TransferredTensor> Counts(size_t tensors) const;
  // The weights read so far that are not their rounded masters, if these are compared.
  std::vector<std::string> UnlikeMasters() const;
  // Over the source's tensors that were written, without random states.
  Fingerprints SourceFingerprints() const;

  // The sum of the values written to a tensor so far. Another thread may ask for a tensor that is whole.
  const TensorFingerprint& SumOf(uint32_t tensor) const;
  // Sets the sum of a tensor that an earlier run or another rank wrote as it was read.
  void SetSum(uint32_t tensor, const TensorFingerprint& sum);

  // Checks the tensors read back at `path`: their table and their sums. Errors: Corrupt naming a tensor that
  // is missing or unexpected, or whose dtype, shape or values differ.
  Status Compare(const std::string& path, const TensorTable& found, const StepFingerprint& sums) const;

 private:
  struct Sum {
    TensorFingerprint sum;
    bool complete = false;  // summed by an earlier Run()
  };
  Status WriteBlock(const Block& block, std::span<const uint32_t> tensors, BlockTarget& target);
  Status CastBlock(uint32_t tensor, const Block& block, Block& out);
  uint32_t FirstOf(uint32_t source) const {
    const auto found = first_of_.find(source);
    return found == first_of_.end() ? source : found->second;
  }
  bool IsSourceItself(uint32_t tensor) const;
  bool IsSummedWeight(uint32_t source) const {
    return source_sums_.contains(source) && source_.catalog().tensors[source].role == Role::kWeight;
  }

  CheckpointSource& source_;
  const std::vector<WrittenTensor>& tensors_;
  const uint64_t block_bytes_;
  const CastOptions options_;
  const std::function<void(uint64_t)> advance_;
  std::map<uint32_t, uint32_t> first_of_;  // of the set, for each tensor of the source that comes in turns
  std::optional<MasterSums> masters_;
  std::set<uint32_t> compared_;          // tensors of the source that masters_ has seen
  std::map<uint32_t, Sum> source_sums_;  // by the source's tensor
  std::vector<TensorFingerprint> sums_;  // of each written tensor that is not its source itself
  std::vector<CastCounts> counts_;
  std::vector<std::byte> cast_;
};

}  // namespace cairn
