#include "tools/check/expert_values.h"

#include <algorithm>

#include "convert/stream/decode_values.h"

namespace cairn {

ExpertValues::ExpertValues(const std::vector<TensorEntry>& tensors, const ExpertCensus& census)
    : tensors_(tensors), census_(census) {
  for (const TensorEntry& tensor : tensors)
    if (tensor.role == Role::kWeight) weight_names_.insert(tensor.spec.name);
  for (uint32_t i = 0; i < census.mixtures.size(); ++i)
    if (census.mixtures[i].router) router_of_.emplace(*census.mixtures[i].router, i);
}

ExpertPart* ExpertValues::PartOf(uint32_t tensor, const ExpertTensor& place) {
  const auto& [spec, role, dtype] = tensors_[tensor];
  const bool weight = role == Role::kWeight || (role == Role::kMaster && !weight_names_.contains(spec.name));
  if ((!weight && role != Role::kExpAvgSq) || !IsFloat(dtype)) return nullptr;
  ExpertPart& part = (weight ? weights_ : second_moments_)[{place.mixture, place.part}];
  if (part.name.empty()) part.name = DisplayName(tensors_[tensor]);
  part.matrix = spec.shape.rank() - (place.count > 1 ? 1 : 0) > 1;
  return &part;
}

ExpertPart* ExpertValues::RouterOf(uint32_t tensor) {
  const auto found = router_of_.find(tensor);
  return found == router_of_.end() ? nullptr : &routers_[found->second];
}

void ExpertValues::Begin(uint32_t tensor) {
  tensor_ = tensor;
  part_ = nullptr;
  other_ = nullptr;
  const TensorEntry& entry = tensors_[tensor];
  any_second_moments_ |= entry.role == Role::kExpAvgSq;
  const auto place = census_.tensors.find(tensor);
  const bool of_experts = place != census_.tensors.end();
  if (!of_experts && entry.role == Role::kWeight && entry.spec.shape.rank() == 2) other_ = &others_[tensor];
  part_ = of_experts ? PartOf(tensor, place->second) : RouterOf(tensor);
  expert_ = of_experts ? place->second.first : 0;
  const uint64_t count = of_experts ? place->second.count : part_ ? entry.spec.shape[0] : 0;
  left_ = expert_bytes_ = count == 0 ? 0 : entry.bytes() / count;
  hasher_.Reset(0);
}

void ExpertValues::Add(uint32_t tensor, std::span<const std::byte> bytes) {
  if (tensor != tensor_) Begin(tensor);
  const Dtype dtype = tensors_[tensor].dtype;
  if (other_) other_->Add(dtype, bytes);
  while (part_ && !bytes.empty()) {
    const std::span<const std::byte> own = bytes.first(std::min<uint64_t>(left_, bytes.size()));
    ExpertValue& expert = part_->experts[expert_];
    expert.stats.Add(dtype, own);
    hasher_.Update(own);
    left_ -= own.size();
    bytes = bytes.subspan(own.size());
    if (left_ > 0) return;
    expert.digest = hasher_.Finish();
    hasher_.Reset(0);
    left_ = expert_bytes_;
    ++expert_;
  }
}

}  // namespace cairn
