// Training samples of an indexed dataset in Megatron's order: sample i is the same tokens as in
// megatron-core.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/base/status.h"
#include "runtime/data/gpt_indices.h"
#include "runtime/data/indexed_dataset.h"

namespace cairn {

inline constexpr uint32_t kDefaultDataSeed = 1234;  // Megatron's --seed

// Constant after Create, so safe to read from several threads. Memory: 4 bytes per sequence and epoch, 12 per
// sample.
class GptDataset {
 public:
  // `range` is one of SplitSequences'. `num_samples` is what the whole run will ask for: it shapes the order
  // of all samples, so a resumed run must give the same number; without it: one epoch. Linear in sequences *
  // epochs + samples. Errors: InvalidArgument (an empty part, numbers beyond 2^32 entries), naming the
  // dataset.
  static Result<GptDataset> Create(std::shared_ptr<const IndexedDataset> indexed, SequenceRange range,
                                   std::optional<uint64_t> num_samples, uint64_t seq_length,
                                   uint32_t seed = kDefaultDataSeed,
                                   double separate_final_below = kMegatronSeparateFinal);

  uint64_t size() const { return shuffle_index_.size(); }  // samples; at least num_samples
  uint64_t seq_length() const { return seq_length_; }
  uint64_t epochs() const { return plan_.epochs; }
  double samples_per_epoch() const {
    return static_cast<double>(tokens_per_epoch_) / static_cast<double>(seq_length_);
  }
  // True if the samples that both have would come in the same order had `num_samples` been asked for.
  bool SameOrderFor(std::optional<uint64_t> num_samples) const;

  // Copies the seq_length + 1 tokens of sample i: inputs are out[0, s), labels out[1, s + 1).
  // Errors: InvalidArgument (i >= size(), a span of another size); IoError (a file that was truncated, or
  // whose file system failed).
  Status Sample(uint64_t i, std::span<int64_t> out) const;

  std::span<const uint32_t> document_index() const { return document_index_; }
  std::span<const uint32_t> shuffle_index() const { return shuffle_index_; }

 private:
  GptDataset() = default;

  std::shared_ptr<const IndexedDataset> indexed_;
  uint64_t seq_length_ = 0;
  double separate_final_below_ = kMegatronSeparateFinal;
  EpochPlan plan_;
  uint64_t tokens_per_epoch_ = 0;
  std::vector<uint32_t> document_index_;
  std::vector<SampleStart> sample_index_;
  std::vector<uint32_t> shuffle_index_;
};

}  // namespace cairn
