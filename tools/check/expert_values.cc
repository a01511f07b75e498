#include "tools/check/expert_values.h"

#include <algorithm>

#include "convert/stream/decode_values.h"

namespace cairn {

ExpertValues::ExpertValues(const std::vector<TensorEntry>& tensors, const ExpertCensus& census)
    : tensors_(tensors), census_(census) {
  for (const TensorEntry& tensor : tensors)
    if (tensor.role == Role::kWeight) weight_names_.insert(tensor.spec.name);
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

void ExpertValues::Begin(uint32_t tensor) {
  tensor_ = tensor;
  part_ = nullptr;
  other_ = nullptr;
  const TensorEntry& entry = tensors_[tensor];
  any_second_moments_ |= entry.role == Role::kExpAvgSq;
  const auto place = census_.tensors.find(tensor);
  if (place == census_.tensors.end()) {
    if (entry.role == Role::kWeight && entry.spec.shape.rank() == 2) other_ = &others_[tensor];
    return;
  }
  part_ = PartOf(tensor, place->second);
  expert_ = place->second.first;
  left_ = expert_bytes_ = place->second.count == 0 ? 0 : entry.bytes() / place->second.count;
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
