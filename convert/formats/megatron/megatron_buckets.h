// The state of Megatron's distributed optimizer in its own buckets ("dp_reshardable", Megatron-Core's default
// since 0.15): flat tensors of each model parallel rank and bucket, cut over data parallel ranks. Experts
// that are spread over ranks have an optimizer of their own, whose ranks are those of ETP and EP.
//
// The owner of each part of a bucket is found as in distrib_optim.pt (megatron_optimizer.h): the weights of
// the rank, cut out of the model's tensors, are matched by value with the masters in it. Source:
// megatron-core 0.16.1, optimizer/distrib_optimizer.py.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <tuple>

#include "convert/formats/dcp/dcp_index.h"
#include "convert/formats/megatron_model/megatron_model.h"
#include "convert/formats/megatron_model/megatron_names.h"
#include "convert/formats/megatron_model/megatron_optimizer.h"

namespace cairn {

class MegatronBuckets {
 public:
  // True if a tensor is part of a bucket.
  static bool IsOne(std::string_view name) { return name.find("optimizer.distributed.") != name.npos; }

  // `args` are the arguments of a training of `topology`; `index` must outlive it. Errors: NotSupported if
  // they cut its pipeline in an unknown way, or the buckets are not those of such a training.
  static Result<MegatronBuckets> Make(const PyValue& args, const MegatronShape& shape,
                                      const Topology& topology, const DcpIndex& index);

  // A chunk of a weight: `box` of a tensor of `shape`, without the dimension of the layers.
  // Errors: NotSupported if it is not a box that one tensor parallel rank holds.
  Status AddWeight(const MegatronName& name, const Dims& shape, const Box& box, const StoredArray& chunk);

  // After all weights: finds out what the buckets hold. `items` and `optimizer` read the directory
  // whose files `builder` lists. Errors: NotSupported, and Corrupt naming bucket and element.
  Status Read(DcpItems& items, MegatronOptimizer& optimizer, StoredBuilder& builder);
  // Then: hands over the states of every parameter; copies go to the builder's account.
  Status Assemble(MegatronAssembler& assembler, StoredBuilder& builder) const;

 private:
  // The part of a weight that a rank of a stage holds. The halves of a gated MLP are two pieces of one.
  struct Held {
    MegatronName name;
    Dims shape;
    std::map<uint64_t, std::pair<Box, StoredArray>> pieces;
    MegatronWeight weight;  // all pieces
  };
  using Ordinal = std::array<int64_t, 4>;          // layer, and place among what it registers
  using Owner = std::pair<bool, int>;              // the optimizer of experts or the other; a rank of a stage
  using BufferPlace = std::tuple<bool, int, int>;  // the optimizer, its model parallel rank, and its buffer
  using Bucket = std::vector<std::pair<Role, const DcpTensor*>>;
  using Buffers = std::map<BufferPlace, std::map<int, Bucket>>;  // by number

  Ordinal OrdinalOf(int layer, const MegatronParameter& parameter, int64_t expert) const;
  static Result<Buffers> BuffersOf(const DcpIndex& index);
  Result<std::vector<MegatronBuffer>> ReadBuffer(const std::map<int, Bucket>& buckets, DcpItems& items,
                                                 StoredBuilder& builder) const;
  std::vector<MegatronWeight*> WeightsOf(const Owner& owner, int chunk);

  MegatronShape shape_;
  Topology topology_;
  bool apart_ = false;       // experts have an optimizer of their own
  std::vector<int> layers_;  // of each pipeline chunk
  Buffers buffers_;
  std::map<Owner, std::map<Ordinal, Held>> held_;
  std::deque<MegatronWeight> heads_;  // copies of the embedding on the last stage
};

}  // namespace cairn
