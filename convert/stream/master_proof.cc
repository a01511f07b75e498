#include "convert/stream/master_proof.h"

#include "ckpt/codec/cast.h"

namespace cairn {

MasterSums::MasterSums(const TensorTable& catalog) : catalog_(catalog) {
  const TensorLookup lookup(catalog);
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorEntry& master = catalog.tensors[i];
    if (master.role != Role::kMaster || master.dtype != Dtype::kF32) continue;
    const Result<uint32_t> found = lookup.Find(master.spec.name, Role::kWeight);
    if (!found.ok()) continue;
    const TensorEntry& weight = catalog.tensors[*found];
    if (!CanCast(master.dtype, weight.dtype) || !(weight.spec.shape == master.spec.shape)) continue;
    pair_of_[i] = pair_of_[*found] = pairs_.size();
    pairs_.push_back({i, *found, TensorFingerprint(weight), TensorFingerprint(weight)});
  }
}

std::optional<uint32_t> MasterSums::OtherOf(uint32_t tensor) const {
  const auto found = pair_of_.find(tensor);
  if (found == pair_of_.end()) return std::nullopt;
  const Pair& pair = pairs_[found->second];
  return tensor == pair.master ? pair.weight : pair.master;
}

void MasterSums::Add(const Block& block) {
  const auto found = pair_of_.find(block.tensor);
  if (found == pair_of_.end()) return;
  Pair& pair = pairs_[found->second];
  if (block.tensor == pair.weight) return pair.stored.Add(block.begin, block.bytes);
  const Dtype from = catalog_.tensors[pair.master].dtype, to = catalog_.tensors[pair.weight].dtype;
  rounded_.resize(block.bytes.size() / SizeOf(from) * SizeOf(to));
  Cast(from, block.bytes, to, rounded_, OnOverflow::kInfinity);
  pair.rounded.Add(block.begin, rounded_);
}

void MasterSums::SetSum(uint32_t weight, const TensorFingerprint& sum) {
  const auto found = pair_of_.find(weight);
  if (found != pair_of_.end() && pairs_[found->second].weight == weight) pairs_[found->second].stored = sum;
}

std::vector<std::string> MasterSums::Differing() const {
  std::vector<std::string> names;
  for (const Pair& pair : pairs_)
    if (!(pair.stored == pair.rounded)) names.push_back(catalog_.tensors[pair.weight].spec.name);
  return names;
}

Result<size_t> ProveMasters(CheckpointSource& source, uint64_t max_memory) {
  MasterSums sums(source.catalog());
  std::vector<uint32_t> tensors;
  for (uint32_t i = 0; i < source.catalog().tensors.size(); ++i)
    if (sums.OtherOf(i)) tensors.push_back(i);
  source.SetCacheBytes(ReaderCacheFor(max_memory));
  const Status read = StreamBlocks(source, tensors, BlockBytesFor(max_memory), [&](const Block& block) {
    sums.Add(block);
    return OkStatus();
  });
  source.SetCacheBytes(0);
  CAIRN_RETURN_IF_ERROR(read);
  if (const std::vector<std::string> names = sums.Differing(); !names.empty())
    return Corrupt(
        "{}: the master of {} does not round to its weight; they belong to different steps, or the shards "
        "are in a different order than the files state",
        source.name(), names.front());
  return sums.pairs();
}

}  // namespace cairn
