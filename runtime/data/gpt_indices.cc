#include "runtime/data/gpt_indices.h"

#include <algorithm>
#include <numeric>

namespace cairn {
namespace {

constexpr uint64_t kMaxTokens = uint64_t{1} << 62;  // keeps every sum of token counts below 2^63

// Appends `epochs` copies of the ids in `range`, shuffled as a whole.
void AppendShuffled(SequenceRange range, uint64_t epochs, NumpyShuffler& shuffler,
                    std::vector<uint32_t>& index) {
  const size_t begin = index.size();
  for (uint64_t epoch = 0; epoch < epochs; ++epoch) {
    for (uint64_t id = range.begin; id < range.end; ++id) index.push_back(static_cast<uint32_t>(id));
  }
  shuffler.Shuffle(std::span(index).subspan(begin));
}

}  // namespace

Result<EpochPlan> PlanEpochs(uint64_t tokens_per_epoch, std::optional<uint64_t> num_samples,
                             uint64_t seq_length, double separate_final_below) {
  if (tokens_per_epoch == 0)
    return InvalidArgument("this part of the data has no tokens; give it a larger share with --split");
  const uint64_t samples = num_samples.value_or(1);
  if (samples == 0 || seq_length == 0)
    return InvalidArgument("{} samples of {} tokens: both must be above 0", samples, seq_length);
  if (tokens_per_epoch > kMaxTokens || samples > (kMaxTokens - kExtraTokens) / seq_length)
    return InvalidArgument("{} samples of {} tokens are more than 2^62 tokens", samples, seq_length);
  const uint64_t wanted = num_samples ? samples * seq_length + kExtraTokens : 1;
  EpochPlan plan;
  plan.epochs = std::max<uint64_t>(1, (wanted - 1) / tokens_per_epoch + 1);
  plan.samples = (plan.epochs * tokens_per_epoch - kExtraTokens) / seq_length;
  plan.samples_before_final = plan.samples;
  if (plan.epochs == 1) return plan;
  const uint64_t before_final = ((plan.epochs - 1) * tokens_per_epoch - kExtraTokens) / seq_length;
  const uint64_t per_epoch = (tokens_per_epoch - kExtraTokens) / seq_length;
  plan.separate_final =
      samples - before_final < static_cast<uint64_t>(separate_final_below * static_cast<double>(per_epoch));
  if (plan.separate_final) plan.samples_before_final = before_final;
  return plan;
}

std::vector<uint32_t> BuildDocumentIndex(SequenceRange range, const EpochPlan& plan,
                                         NumpyShuffler& shuffler) {
  std::vector<uint32_t> index;
  index.reserve(range.size() * plan.epochs);
  AppendShuffled(range, plan.separate_final ? plan.epochs - 1 : plan.epochs, shuffler, index);
  if (plan.separate_final) AppendShuffled(range, 1, shuffler, index);
  return index;
}

std::vector<SampleStart> BuildSampleIndex(std::span<const int32_t> lengths, uint64_t first_sequence,
                                          std::span<const uint32_t> document_index, uint64_t seq_length,
                                          uint64_t samples) {
  const auto length_at = [&](uint64_t position) -> uint64_t {
    return lengths[document_index[position] - first_sequence];
  };
  std::vector<SampleStart> index;
  index.reserve(samples + 1);
  uint64_t position = 0;
  uint64_t offset = 0;
  for (uint64_t sample = 0; sample < samples; ++sample) {
    index.push_back({static_cast<uint32_t>(position), static_cast<uint32_t>(offset)});
    uint64_t need = seq_length + kExtraTokens;
    while (length_at(position) - offset < need) {
      need -= length_at(position) - offset;
      ++position;
      offset = 0;
    }
    offset += need - kExtraTokens;
  }
  index.push_back({static_cast<uint32_t>(position), static_cast<uint32_t>(offset)});
  return index;
}

std::vector<uint32_t> BuildShuffleIndex(const EpochPlan& plan, NumpyShuffler& shuffler) {
  std::vector<uint32_t> index(plan.samples);
  std::iota(index.begin(), index.end(), 0);
  shuffler.Shuffle(std::span(index).first(plan.samples_before_final));
  shuffler.Shuffle(std::span(index).subspan(plan.samples_before_final));
  return index;
}

}  // namespace cairn
