// All three forms ask the same question: which free weight is this master, rounded? Rounds() compares the
// first and the last elements. A list of masters is searched by shape and value. A flat buffer is walked
// from its start with the weights in reverse: the next parameter begins at a multiple of 64 in its bucket,
// or at once if a new bucket begins. Moments are cut at the same places as their masters. Gaps between
// parameters are declared as alignment.

#include "convert/formats/megatron_model/megatron_optimizer.h"

#include <algorithm>

#include "ckpt/codec/cast.h"
#include "convert/formats/training/param_groups.h"
#include "convert/torch/tensor_walk.h"

namespace cairn {
namespace {

constexpr uint64_t kSampleElements = 256;  // of a tensor; 512 bytes do not agree by chance

Result<StoredArray> StateArray(const TorchFile& file, const PyValue* value, const std::string& name,
                               StoredBuilder& builder) {
  if (!value || !value->is(PyKind::kTensor)) return NotSupported("{} is missing", name);
  CAIRN_ASSIGN_OR_RETURN(StoredArray array, builder.ArrayIn(file, *value->tensor, name));
  if (array.transposed) return NotSupported("{} is stored transposed", name);
  return array;
}

}  // namespace

Result<std::vector<std::byte>> MegatronOptimizer::Sample(const StoredArray& array, uint64_t begin,
                                                         uint64_t count) {
  const uint64_t size = SizeOf(array.dtype);
  std::vector<std::byte> bytes(count * size);
  for (const StoredExtent& extent : array.extents) {
    const uint64_t from = std::max(begin, extent.range.begin), to = std::min(begin + count, extent.range.end);
    if (from >= to) continue;
    CAIRN_ASSIGN_OR_RETURN(const auto file, files_.Get(builder_.catalog.files[extent.file], Direct::kOff));
    CAIRN_RETURN_IF_ERROR(file->ReadAt(extent.file_offset + (from - extent.range.begin) * size,
                                       std::span(bytes).subspan((from - begin) * size, (to - from) * size)));
  }
  return bytes;
}

Result<bool> MegatronOptimizer::Rounds(const StoredArray& master, uint64_t begin, const StoredArray& weight) {
  const uint64_t volume = weight.shape.Volume(), count = std::min(volume, kSampleElements);
  if (begin > master.shape.Volume() || volume > master.shape.Volume() - begin) return false;
  for (const uint64_t at : {uint64_t{0}, volume - count}) {
    CAIRN_ASSIGN_OR_RETURN(const auto of_master, Sample(master, begin + at, count));
    CAIRN_ASSIGN_OR_RETURN(const auto of_weight, Sample(weight, at, count));
    std::vector<std::byte> rounded(of_weight.size());
    Cast(master.dtype, of_master, weight.dtype, rounded, OnOverflow::kInfinity);
    if (rounded != of_weight) return false;
  }
  return true;
}

Status MegatronOptimizer::ReadPlain(const TorchFile& file, const PyValue& optimizer,
                                    const std::vector<MegatronChunkWeights>& chunks) {
  const PyValue* groups = Find(optimizer, "fp32_from_fp16_params");
  if (!groups) groups = Find(optimizer, "fp32_from_fp16");
  const PyValue* inner = Find(optimizer, "optimizer");
  if (!inner) inner = Find(optimizer, "optimizer_state_dict");
  const PyValue* states = inner ? Find(*inner, "state") : nullptr;
  if (inner && !states && Find(*inner, "param_groups"))
    return NotFound("its optimizer has no states, and distrib_optim.pt, which would have them, is missing");
  if (!groups || !groups->is(PyKind::kList) || !states)
    return NotSupported("it has no fp32_from_fp16_params");
  std::vector<MegatronWeight*> left;
  for (const MegatronChunkWeights& chunk : chunks) left.insert(left.end(), chunk.begin(), chunk.end());
  std::map<std::string, std::set<Role>, std::less<>> roles;
  for (size_t g = 0; g < groups->items.size(); ++g) {
    const PyValue* ids = Find(*ItemOf(Find(*inner, "param_groups"), g), "params");
    for (size_t i = 0; i < groups->items[g]->items.size(); ++i) {
      const std::string name = fmt::format("master {} of group {}", i, g);
      CAIRN_ASSIGN_OR_RETURN(StoredArray master,
                             StateArray(file, groups->items[g]->items[i], name, builder_));
      const auto id = AsInt(ItemOf(ids, i));
      const PyValue* state = id ? EntryOf(states, *id) : nullptr;
      if (!state) return NotSupported("{} has no states", name);
      auto found = left.begin();
      for (; found != left.end(); ++found) {
        if (!((*found)->weight.shape == master.shape)) continue;
        CAIRN_ASSIGN_OR_RETURN(const bool rounds, Rounds(master, 0, (*found)->weight));
        if (rounds) break;
      }
      if (found == left.end())
        return Corrupt("{} rounds to no weight of its shape, {}", name, ToString(master.shape));
      MegatronWeight& weight = **found;
      left.erase(found);
      weight.group = g;
      weight.states.emplace_back(Role::kMaster, std::move(master));
      CAIRN_RETURN_IF_ERROR(TakeStates(file, *state, name, weight));
      for (const auto& [role, array] : weight.states) roles[name].insert(role);
    }
  }
  if (const auto lost = LostState(roles))
    return NotFound("{} of {} is missing, which others have", Name(lost->second), lost->first);
  return OkStatus();
}

Status MegatronOptimizer::TakeStates(const TorchFile& file, const PyValue& state, const std::string& name,
                                     MegatronWeight& weight) {
  CAIRN_RETURN_IF_ERROR(TakeStep(file, state, name));
  CAIRN_ASSIGN_OR_RETURN(const OptimizerStates states, StatesOf(state, name));
  if (states.tensors.empty()) return NotSupported("{} has no states", name);
  for (const auto& [role, tensor] : states.tensors) {
    if (tensor->shape != weight.weight.shape)
      return NotSupported("{} of {} has another shape, {}", Name(role), name, ToString(tensor->shape));
    CAIRN_ASSIGN_OR_RETURN(StoredArray array, builder_.ArrayIn(file, *tensor, std::string(Name(role))));
    if (array.transposed) return NotSupported("{} of {} is stored transposed", Name(role), name);
    weight.states.emplace_back(role, std::move(array));
  }
  if (states.step) builder_.account.OmitBelow(Fate::kTrainingState, file, *states.step, name + ".step");
  return OkStatus();
}

Status MegatronOptimizer::TakeStep(const TorchFile& file, const PyValue& state, const std::string& name) {
  CAIRN_ASSIGN_OR_RETURN(const auto step, ScalarOf(files_.file_system(), file, Find(state, "step")));
  if (step && step_ && *step != *step_)
    return NotSupported("{} has had {} updates, but others {}; Cairn reads only one number for all", name,
                        *step, *step_);
  if (step) step_ = step;
  return OkStatus();
}

Status MegatronOptimizer::ReadDistributed(const TorchFile& file, const PyValue& buffers,
                                          const std::vector<MegatronChunkWeights>& chunks) {
  for (size_t c = 0; c < chunks.size(); ++c) {
    const PyValue* types = EntryOf(&buffers, static_cast<int64_t>(c));
    if (!types || !types->is(PyKind::kDict) || types->items.size() != 2)
      return NotSupported("it must have one buffer of one type for each chunk of the model");
    const PyValue& stored = *types->items[1];
    MegatronBuffer buffer;
    for (const Role& role : kBufferRoles) {
      const std::string key(kBufferPlaces.NameOf(role));
      CAIRN_ASSIGN_OR_RETURN(StoredArray vector, StateArray(file, Find(stored, key), key, builder_));
      if (vector.shape.rank() != 1 ||
          (!buffer.vectors.empty() && !(vector.shape == buffer.vectors[0].second.shape)))
        return Corrupt("{} has shape {}", key, ToString(vector.shape));
      buffer.vectors.emplace_back(role, std::move(vector));
    }
    CAIRN_RETURN_IF_ERROR(Walk(buffer, chunks[c]));
  }
  return OkStatus();
}

void MegatronOptimizer::LeaveAlignment(const MegatronBuffer& buffer, uint64_t begin, uint64_t end) {
  for (const auto& [role, vector] : buffer.vectors)
    if (begin < end)
      builder_.account.Omit(Fate::kAlignment, builder_.catalog, StretchOf(vector, begin, {end - begin}));
}

// Gives one of `left` the elements of the buffer from `begin` on, and returns where they end; nullopt if they
// round to no weight.
Result<std::optional<uint64_t>> MegatronOptimizer::TakeAt(const MegatronBuffer& buffer, uint64_t begin,
                                                          std::vector<MegatronWeight*>& left) {
  for (auto found = left.begin(); found != left.end(); ++found) {
    CAIRN_ASSIGN_OR_RETURN(const bool rounds, Rounds(buffer.vectors[0].second, begin, (*found)->weight));
    if (!rounds) continue;
    const StoredArray& weight = (*found)->weight;
    for (const auto& [role, vector] : buffer.vectors)
      (*found)->states.emplace_back(role, StretchOf(vector, begin, weight.shape));
    left.erase(found);
    return std::optional(begin + weight.shape.Volume());
  }
  return std::optional<uint64_t>();
}

// From the end of one parameter the next begins at the next multiple of 64 elements in its bucket, or at once
// if it is the first of another: the padding between buckets is not in the file.
Status MegatronOptimizer::Walk(const MegatronBuffer& buffer, const MegatronChunkWeights& weights) {
  std::vector<MegatronWeight*> left(weights.rbegin(), weights.rend());
  uint64_t bucket = 0, end = 0;
  while (!left.empty()) {
    const uint64_t aligned = bucket + AlignedInBucket(end - bucket);
    CAIRN_ASSIGN_OR_RETURN(std::optional<uint64_t> next, TakeAt(buffer, aligned, left));
    if (next) {
      LeaveAlignment(buffer, end, aligned);
    } else {
      bucket = end;
      CAIRN_ASSIGN_OR_RETURN(next, TakeAt(buffer, end, left));
    }
    if (!next)
      return Corrupt("no weight is the master at element {} rounded; {} weights are left", end, left.size());
    end = *next;
  }
  LeaveAlignment(buffer, end, buffer.vectors[0].second.shape.Volume());
  return OkStatus();
}

Status MegatronOptimizer::ReadBuckets(const std::vector<MegatronBuffer>& buckets,
                                      const MegatronChunkWeights& weights) {
  std::vector<MegatronWeight*> left(weights.rbegin(), weights.rend());
  for (size_t b = 0; b < buckets.size(); ++b) {
    const uint64_t size = buckets[b].vectors[0].second.shape.Volume();
    for (const auto& [role, vector] : buckets[b].vectors)
      if (vector.shape.Volume() != size)
        return Corrupt("{} has {} elements", vector.name, ToString(vector.shape));
    for (uint64_t at = 0; at < size; at = AlignedInBucket(at)) {
      CAIRN_ASSIGN_OR_RETURN(const auto next, TakeAt(buckets[b], at, left));
      if (!next)
        return Corrupt("no weight is the master at element {} of bucket {} rounded; {} weights are left", at,
                       b, left.size());
      at = *next;
      LeaveAlignment(buckets[b], at, std::min(size, AlignedInBucket(at)));
    }
  }
  if (!left.empty()) return Corrupt("{} weights are in no bucket", left.size());
  return OkStatus();
}

}  // namespace cairn
