#include "runtime/data/gpt_dataset.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace cairn {
namespace {

constexpr uint64_t kMaxEntries =
    std::numeric_limits<uint32_t>::max() - 1;  // Megatron changes to 64 bit from here on

Status CheckSizes(SequenceRange range, const EpochPlan& plan) {
  if (plan.samples > kMaxEntries || plan.epochs > kMaxEntries / std::max<uint64_t>(1, range.size()) ||
      range.end > kMaxEntries) {
    return InvalidArgument(
        "{} samples from {} epochs of {} sequences: more than 2^32 entries; ask for fewer samples",
        plan.samples, plan.epochs, range.size());
  }
  return OkStatus();
}

}  // namespace

Result<GptDataset> GptDataset::Create(std::shared_ptr<const IndexedDataset> indexed, SequenceRange range,
                                      std::optional<uint64_t> num_samples, uint64_t seq_length, uint32_t seed,
                                      double separate_final_below) {
  if (range.begin > range.end || range.end > indexed->sequence_count())
    return InvalidArgument("{}: sequences {} to {} were requested, but it has only {}", indexed->prefix(),
                           range.begin, range.end, indexed->sequence_count());
  CAIRN_ASSIGN_OR_RETURN(const std::vector<int32_t> lengths, indexed->SequenceLengths(range));
  const uint64_t tokens = std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
  Result<EpochPlan> plan = PlanEpochs(tokens, num_samples, seq_length, separate_final_below);
  if (!plan.ok()) return plan.status().WithContext(indexed->prefix());
  CAIRN_RETURN_IF_ERROR(CheckSizes(range, *plan).WithContext(indexed->prefix()));

  GptDataset dataset;
  dataset.indexed_ = std::move(indexed);
  dataset.seq_length_ = seq_length;
  dataset.separate_final_below_ = separate_final_below;
  dataset.plan_ = *plan;
  dataset.tokens_per_epoch_ = tokens;
  NumpyShuffler shuffler(seed);  // one stream: documents first, then samples
  dataset.document_index_ = BuildDocumentIndex(range, *plan, shuffler);
  dataset.sample_index_ =
      BuildSampleIndex(lengths, range.begin, dataset.document_index_, seq_length, plan->samples);
  dataset.shuffle_index_ = BuildShuffleIndex(*plan, shuffler);
  return dataset;
}

// The order is drawn once for all epochs together, or for all but the last and then for that one.
bool GptDataset::SameOrderFor(std::optional<uint64_t> num_samples) const {
  const Result<EpochPlan> other =
      PlanEpochs(tokens_per_epoch_, num_samples, seq_length_, separate_final_below_);
  return other.ok() && other->epochs == plan_.epochs && other->separate_final == plan_.separate_final;
}

Status GptDataset::Sample(uint64_t i, std::span<int64_t> out) const {
  if (i >= size()) return InvalidArgument("{}: sample {} of {}", indexed_->prefix(), i, size());
  if (out.size() != seq_length_ + kExtraTokens)
    return InvalidArgument("a sample has {} tokens, but there is room for {}", seq_length_ + kExtraTokens,
                           out.size());
  auto [position, offset] = sample_index_[shuffle_index_[i]];
  while (!out.empty()) {
    if (position == document_index_.size())
      return IoError("{}: its index was changed while it was read", indexed_->prefix());
    CAIRN_ASSIGN_OR_RETURN(const uint64_t count,
                           indexed_->CopyTokens(document_index_[position++], offset, out));
    out = out.subspan(count);
    offset = 0;
  }
  return OkStatus();
}

}  // namespace cairn
