// Checks that masters and weights belong together: rounded to the weight's type, each master is its weight.
//
// Proves the order and the paddings that a format module assumed for flattened optimizer shards: wrong ones
// pair parameters with the values of others. Every training that keeps both rounds one to the other.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert/stream/fingerprint.h"

namespace cairn {

// The fp32 masters of a source that have a weight, and sums of both while they are read.
class MasterSums {
 public:
  explicit MasterSums(const TensorTable& catalog);

  size_t pairs() const { return pairs_.size(); }
  // The weight of a master, or the master of a weight; nothing for other tensors.
  std::optional<uint32_t> OtherOf(uint32_t tensor) const;
  // A block of any tensor, each of its blocks once.
  void Add(const Block& block);
  // The sum of a weight whose blocks are not added. Does nothing for another tensor.
  void SetSum(uint32_t weight, const TensorFingerprint& sum);
  // Once both tensors of each pair that was begun are whole: the weights that are not their rounded masters.
  std::vector<std::string> Differing() const;

 private:
  struct Pair {
    uint32_t master = 0;  // into the catalog
    uint32_t weight = 0;
    TensorFingerprint stored;   // of the weight
    TensorFingerprint rounded;  // of the master, as if it were the weight
  };

  const TensorTable& catalog_;
  std::vector<Pair> pairs_;
  std::map<uint32_t, size_t> pair_of_;  // of both tensors
  std::vector<std::byte> rounded_;
};

// Reads all masters that have a weight, and these. Returns how many. Errors: Corrupt naming a parameter;
// those of reading.
Result<size_t> ProveMasters(CheckpointSource& source, uint64_t max_memory);

}  // namespace cairn
