// The samples of a training: one dataset, or several blended, in Megatron's order for the same seed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/blend_index.h"
#include "runtime/data/gpt_dataset.h"

namespace cairn {

// One dataset of a blend.
struct BlendMember {
  std::shared_ptr<const IndexedDataset> indexed;
  SequenceRange range;
  double weight = 1;
};

// How many samples each member is asked for, of n in all. That shapes each member's order.
enum class BlendRule {
  kByLength,    // megatron-core, no weights: one epoch of each, in proportion to its samples; a single one: n
  kWeighted,    // megatron-core: ceil(ceil(n w) 1.005)
  kBigScience,  // Megatron-DeepSpeed's weighted splits: ceil(n w 1.005), a separate last epoch below 95 %
};

// Constant after Create, so safe to read from several threads. Memory: that of the members, and 6 bytes per
// sample if there are several.
class BlendedDataset {
 public:
  // `num_samples` as in GptDataset. Source: blended_megatron_dataset_builder.py of megatron-core 0.16, and
  // gpt_dataset.py of Megatron-DeepSpeed. Errors: those of GptDataset; InvalidArgument (no or too many
  // members, weights that ask a member for more than it has).
  static Result<BlendedDataset> Create(BlendRule rule, std::vector<BlendMember> members, uint64_t num_samples,
                                       uint64_t seq_length, uint32_t seed);

  // At least num_samples; under kByLength with several members perhaps fewer: all that exist.
  uint64_t size() const { return members_.size() == 1 ? members_[0].size() : index_.dataset.size(); }
  // The sample of one dataset, in one pass over it; 0 for several, which are passed at different paces.
  double samples_per_epoch() const { return members_.size() == 1 ? members_[0].samples_per_epoch() : 0; }
  // True if the samples that both have would come in the same order had `num_samples` been asked for.
  bool SameOrderFor(uint64_t num_samples) const;
  // Its members: for each its weight, sequences, size and digest, and the name of its files
  // without their directories, as they may move.
  const std::vector<std::string>& description() const { return description_; }
  // As GptDataset's.
  Status Sample(uint64_t i, std::span<int64_t> out) const;

 private:
  BlendedDataset() = default;

  BlendRule rule_ = BlendRule::kByLength;
  std::vector<double> weights_;  // normalized once; they decide how many samples each member is asked for
  std::vector<GptDataset> members_;
  std::vector<std::string> description_;
  BlendIndex index_;  // empty: a single member
};

// True if a step's record of its data describes these. Records of earlier versions have no digest.
bool SameData(const std::vector<std::string>& recorded, const std::vector<std::string>& description);

}  // namespace cairn
