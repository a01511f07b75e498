// The optimizer's state in Megatron-LM's own files, which name none of its tensors.
//
// The master of a weight is found by value: rounded, it is that weight. If several fit, the order of the
// model decides; their masters are then equal. Moments are laid out like their masters. Source:
// megatron/core/optimizer/optimizer.py, distrib_optimizer.py, distributed/param_and_grad_buffer.py.
#pragma once

#include <vector>

#include "convert/foreign/stored_builder.h"
#include "convert/formats/training/state_places.h"

namespace cairn {

// A weight of a rank, and the optimizer's state of it.
struct MegatronWeight {
  StoredArray weight;
  std::vector<std::pair<Role, StoredArray>> states;
  std::optional<size_t> group;  // of the optimizer's parameters, if the file states it
};

using MegatronChunkWeights = std::vector<MegatronWeight*>;  // trainable, in the order of the state dict

// A parameter begins at a multiple of this in its bucket.
inline constexpr uint64_t kBucketAlignment = 64;  // elements
inline uint64_t AlignedInBucket(uint64_t element) {
  return (element + kBucketAlignment - 1) / kBucketAlignment * kBucketAlignment;
}

// The distributed optimizer's vectors, under the keys of kBufferPlaces; the masters first.
inline constexpr Role kBufferRoles[] = {Role::kMaster, kAdamStates[0], kAdamStates[1]};

// The flat vectors of a buffer of the distributed optimizer, or of a bucket of it; the masters first.
struct MegatronBuffer {
  std::vector<std::pair<Role, StoredArray>> vectors;
};

// Fills in `states` of weights. After an error some of them may have states and others not.
class MegatronOptimizer {
 public:
  // The builder's files are relative to `directory`; alignment goes to its account.
  MegatronOptimizer(FileSystem& fs, const std::string& directory, StoredBuilder& builder)
      : files_(fs, directory), builder_(builder) {}

  // `optimizer` of model_optim_rng.pt: fp32_from_fp16_params and torch's own state dict.
  // Errors: NotSupported if its form is unknown, naming a state that is not of its weight's shape, or if
  // parameters differ in their number of updates; NotFound naming a state that a parameter lost; Corrupt if a
  // master rounds to no weight.
  Status ReadPlain(const TorchFile& file, const PyValue& optimizer,
                   const std::vector<MegatronChunkWeights>& chunks);

  // After ReadList: the updates of each parameter, if their states have them.
  const std::optional<double>& step() const { return step_; }

  // distrib_optim.pt, or what it has of one of two optimizers: one flat buffer per chunk; parameters in
  // reverse, from multiples of 64 elements.
  Status ReadDistributed(const TorchFile& file, const PyValue& buffers,
                         const std::vector<MegatronChunkWeights>& chunks);

  // The same if each bucket is known: parameters in reverse go through the buckets of a chunk.
  Status ReadBuckets(const std::vector<MegatronBuffer>& buckets, const MegatronChunkWeights& weights);

  // True if the first elements of a master from `begin` on, and the last ones, round to those of a weight.
  Result<bool> Rounds(const StoredArray& master, uint64_t begin, const StoredArray& weight);

 private:
  void LeaveAlignment(const MegatronBuffer& buffer, uint64_t begin, uint64_t end);
  Result<std::vector<std::byte>> Sample(const StoredArray& array, uint64_t begin, uint64_t count);
  Result<std::optional<uint64_t>> TakeAt(const MegatronBuffer& buffer, uint64_t begin,
                                         std::vector<MegatronWeight*>& left);
  // `state`: of the master `name` of `weight`.
  Status TakeStates(const TorchFile& file, const PyValue& state, const std::string& name,
                    MegatronWeight& weight);
  Status TakeStep(const TorchFile& file, const PyValue& state, const std::string& name);
  Status Walk(const MegatronBuffer& buffer, const MegatronChunkWeights& weights);

  OpenFiles files_;
  StoredBuilder& builder_;
  std::optional<double> step_;
};

}  // namespace cairn
