#include "runtime/data/blended_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cairn {
namespace {

constexpr double kSurplus = 0.005;  // Megatron's margin for a blend that comes out a little uneven

// The number of samples from each member; nullopt: one epoch.
std::vector<std::optional<uint64_t>> SamplesOfMembers(BlendRule rule, std::span<const double> weights,
                                                      uint64_t num_samples) {
  const auto n = static_cast<double>(num_samples);
  std::vector<std::optional<uint64_t>> samples(weights.size());
  if (weights.size() == 1 && rule != BlendRule::kWeighted) return {num_samples};
  for (size_t i = 0; i < weights.size(); ++i) {
    double wanted = 0;
    if (rule == BlendRule::kWeighted) wanted = std::ceil(std::ceil(n * weights[i]) * (1 + kSurplus));
    if (rule == BlendRule::kBigScience) wanted = std::ceil(n * weights[i] * (1 + kSurplus));
    if (wanted > 0) samples[i] = static_cast<uint64_t>(wanted);
  }
  return samples;
}

// As Python does, whose sum adds one after the other; BigScience's numpy then divides again.
std::vector<double> NormalizeOneByOne(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> normalized(weights.begin(), weights.end());
  for (double& weight : normalized) weight /= sum;
  return normalized;
}

constexpr std::string_view kDigestMark = ", digest ";

// "0.3 of web, sequences 0 to 949, 52341 tokens in all, digest 0123456789abcdef"
std::string Describe(BlendRule rule, double weight, const BlendMember& member) {
  const std::string& prefix = member.indexed->prefix();
  const std::string share = rule == BlendRule::kByLength ? "" : fmt::format("{:.6g} of ", weight);
  return fmt::format("{}{}, sequences {} to {}, {} tokens in all{}{}{:016x}", share,
                     prefix.substr(prefix.rfind('/') + 1), member.range.begin, member.range.end,
                     member.indexed->token_count(),
                     rule == BlendRule::kBigScience ? " (as a weighted split)" : "", kDigestMark,
                     member.indexed->tokens_digest());
}

}  // namespace

bool SameData(const std::vector<std::string>& recorded, const std::vector<std::string>& description) {
  return std::ranges::equal(recorded, description, [](const std::string& then, const std::string& now) {
    return then == now || then == now.substr(0, now.rfind(kDigestMark));
  });
}

Result<BlendedDataset> BlendedDataset::Create(BlendRule rule, std::vector<BlendMember> members,
                                              uint64_t num_samples, uint64_t seq_length, uint32_t seed) {
  if (members.empty() || members.size() > kMaxBlendedDatasets)
    return InvalidArgument("a blend of {} datasets: it must have 1 to {}", members.size(),
                           kMaxBlendedDatasets);
  BlendedDataset blend;
  blend.rule_ = rule;
  for (const BlendMember& member : members) blend.weights_.push_back(member.weight);
  const bool bigscience = rule == BlendRule::kBigScience;
  blend.weights_ = bigscience ? NormalizeOneByOne(blend.weights_) : NormalizeWeights(blend.weights_);
  const auto asked = SamplesOfMembers(rule, blend.weights_, num_samples);
  std::vector<double> sizes;
  for (size_t i = 0; i < members.size(); ++i) {
    CAIRN_ASSIGN_OR_RETURN(
        GptDataset dataset,
        GptDataset::Create(members[i].indexed, members[i].range, asked[i], seq_length, seed,
                           bigscience ? kBigScienceSeparateFinal : kMegatronSeparateFinal));
    if (dataset.size() == 0)
      return InvalidArgument("{}: this part has fewer than {} tokens, which is too few for one sample",
                             members[i].indexed->prefix(), seq_length + kExtraTokens);
    sizes.push_back(static_cast<double>(dataset.size()));
    blend.description_.push_back(Describe(rule, blend.weights_[i], members[i]));
    blend.members_.push_back(std::move(dataset));
  }
  if (members.size() == 1) return blend;
  const double all = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  const uint64_t size =
      rule == BlendRule::kByLength ? std::min(num_samples, static_cast<uint64_t>(all)) : num_samples;
  blend.index_ =
      BuildBlendIndex(NormalizeWeights(rule == BlendRule::kByLength ? sizes : blend.weights_), size);
  std::vector<uint64_t> taken(members.size());
  for (size_t i = 0; i < size; ++i) taken[blend.index_.dataset[i]] = blend.index_.sample[i] + uint64_t{1};
  for (size_t i = 0; i < members.size(); ++i)
    if (taken[i] > blend.members_[i].size())
      return InvalidArgument("the blend takes {} samples of {}, which has {}; give it a smaller weight",
                             taken[i], members[i].indexed->prefix(), blend.members_[i].size());
  return blend;
}

bool BlendedDataset::SameOrderFor(uint64_t num_samples) const {
  const auto asked = SamplesOfMembers(rule_, weights_, num_samples);
  for (size_t i = 0; i < members_.size(); ++i)
    if (!members_[i].SameOrderFor(asked[i])) return false;
  return true;
}

Status BlendedDataset::Sample(uint64_t i, std::span<int64_t> out) const {
  if (members_.size() == 1) return members_[0].Sample(i, out);
  if (i >= size()) return InvalidArgument("sample {} of a blend of {}", i, size());
  return members_[index_.dataset[i]].Sample(index_.sample[i], out);
}

}  // namespace cairn
