#include "convert/stream/fingerprint.h"

#include <algorithm>
#include <cstring>

#include "convert/stream/element_sums.h"

namespace cairn {

TensorFingerprint::TensorFingerprint(const TensorEntry& tensor) : element_bytes_(SizeOf(tensor.dtype)) {
  const Digest name = DigestOf(DisplayName(tensor));
  std::memcpy(&seed_, name.data(), sizeof(seed_));
}

void TensorFingerprint::Add(uint64_t begin, std::span<const std::byte> bytes) {
  sum_ += SumOfElements(element_bytes_, bytes.data(), bytes.size() / element_bytes_,
                        seed_ + begin * kElementStep);
}

Digest TensorFingerprint::Finish(const TensorEntry& tensor) const {
  return DigestOf(fmt::format("{}|{}|{}|{}|{:016x}{:016x}", DisplayName(tensor), Name(tensor.role),
                              Name(tensor.dtype), ToString(tensor.spec.shape),
                              static_cast<uint64_t>(sum_ >> 64), static_cast<uint64_t>(sum_)));
}

Fingerprints Combine(std::vector<NamedFingerprint> tensors) {
  std::ranges::sort(tensors, {}, &NamedFingerprint::name);
  Hasher hasher;
  for (const NamedFingerprint& tensor : tensors) {
    const std::string line = fmt::format("{} {}\n", ToHex(tensor.digest), tensor.name);
    hasher.Update(std::as_bytes(std::span(line)));
  }
  return {hasher.Finish(), std::move(tensors)};
}

Fingerprints StepFingerprint::Finish(std::span<const TensorEntry> tensors) const {
  std::vector<NamedFingerprint> named;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].role != Role::kRng)
      named.push_back({DisplayName(tensors[i]), sums_[i].Finish(tensors[i])});
  return Combine(std::move(named));
}

Result<StepFingerprint> SumsOf(CheckpointSource& step, uint64_t max_memory,
                               const std::function<void(uint64_t)>& advance) {
  StepFingerprint sums(step.catalog().tensors);
  step.SetCacheBytes(ReaderCacheFor(max_memory));
  CAIRN_RETURN_IF_ERROR(
      StreamBlocks(step, AllTensors(step.catalog()), BlockBytesFor(max_memory), [&](const Block& block) {
        sums.Add(block);
        if (advance) advance(block.bytes.size());
        return OkStatus();
      }));
  return sums;
}

}  // namespace cairn
