// Megatron's three indices that turn a dataset into an endless, shuffled row of fixed-length samples.
//
// The document index is an order of sequences, each once per epoch. Laid end to end they are one long
// text, which the sample index cuts every `seq_length` tokens; a sample has seq_length + 1 tokens, so that
// neighbours share one and each token but the first is a label once. The shuffle index is an order of
// samples. All of it follows from (lengths, number of samples, seq_length, seed). Source: megatron-core 0.16,
// gpt_dataset.py and helpers.cpp, with add_extra_token_to_sequence = 1 and the last partial sample dropped.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ckpt/base/status.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/numpy_shuffle.h"

namespace cairn {

inline constexpr uint64_t kExtraTokens = 1;  // Megatron's add_extra_token_to_sequence

// The last epoch: it is shuffled separately if a smaller share of it is needed.
inline constexpr double kMegatronSeparateFinal = 0.80;
inline constexpr double kBigScienceSeparateFinal = 0.95;  // BigScience's Megatron-DeepSpeed

// The number of epochs, and whether the last one is shuffled separately: if little of the last epoch is
// needed, mixing it with the others would drop documents from the earlier epochs.
struct EpochPlan {
  uint64_t epochs = 1;
  uint64_t samples = 0;               // what all epochs give; at least the number asked for
  uint64_t samples_before_final = 0;  // what all but the last give; equals `samples` if not separate_final
  bool separate_final = false;
};

// Without `num_samples`: one epoch, however short. Errors: InvalidArgument if there is no token, or a
// number is zero or beyond 2^62 tokens.
Result<EpochPlan> PlanEpochs(uint64_t tokens_per_epoch, std::optional<uint64_t> num_samples,
                             uint64_t seq_length, double separate_final_below = kMegatronSeparateFinal);

// Sequence ids, range.size() * plan.epochs of them.
std::vector<uint32_t> BuildDocumentIndex(SequenceRange range, const EpochPlan& plan, NumpyShuffler& shuffler);

// Where a sample begins: a position in the document index and a token of that sequence.
struct SampleStart {
  uint32_t position = 0;
  uint32_t offset = 0;
  bool operator==(const SampleStart&) const = default;
};

// samples + 1 entries, the last one being where the sample after the last would begin. `lengths` are those of
// the sequences from `first_sequence` on. Requires seq_length * samples + 1 tokens in the document index.
std::vector<SampleStart> BuildSampleIndex(std::span<const int32_t> lengths, uint64_t first_sequence,
                                          std::span<const uint32_t> document_index, uint64_t seq_length,
                                          uint64_t samples);

// plan.samples entries.
std::vector<uint32_t> BuildShuffleIndex(const EpochPlan& plan, NumpyShuffler& shuffler);

}  // namespace cairn
