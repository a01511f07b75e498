#include "convert/stream/master_proof.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ckpt/codec/cast.h"
#include "ckpt/model/catalog.h"
#include "convert/stream/block_stream.h"

namespace cairn {

namespace {

struct MasterPair {
  uint32_t master = 0;  // into the catalog
  uint32_t weight = 0;
};

std::vector<MasterPair> PairsOf(const TensorTable& catalog) {
  const TensorLookup lookup(catalog);
  std::vector<MasterPair> pairs;
  for (uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorEntry& tensor = catalog.tensors[i];
    if (tensor.role != Role::kMaster) continue;
    const auto weight = lookup.Find(tensor.spec.name, Role::kWeight);
    if (weight.ok() && CanCast(tensor.dtype, catalog.tensors[*weight].dtype)) pairs.push_back({i, *weight});
  }
  return pairs;
}

class Prover {
 public:
  Prover(CheckpointSource& source, uint64_t block_bytes) : source_(source), block_bytes_(block_bytes) {}

  Status Check(MasterPair pair) {
    const TensorEntry& master = source_.catalog().tensors[pair.master];
    const TensorEntry& weight = source_.catalog().tensors[pair.weight];
    const uint64_t elements = std::max<uint64_t>(1, block_bytes_ / SizeOf(master.dtype));
    uint64_t begin = 0;
    for (BlockCursor cursor(master.spec.shape, elements); !cursor.done(); cursor.Advance()) {
      const Box box = cursor.box();
      const uint64_t count = box.Volume(), size = SizeOf(weight.dtype);
      master_.resize(count * SizeOf(master.dtype));
      rounded_.resize(count * size);
      weight_.resize(count * size);
      CAIRN_RETURN_IF_ERROR(source_.ReadBox(pair.master, box, master_));
      CAIRN_RETURN_IF_ERROR(source_.ReadBox(pair.weight, box, weight_));
      Cast(master.dtype, master_, weight.dtype, rounded_, OnOverflow::kInfinity);
      if (rounded_ != weight_) return Differs(weight, begin, size);
      begin += count;
    }
    return OkStatus();
  }

 private:
  Status Differs(const TensorEntry& weight, uint64_t begin, uint64_t size) const {
    uint64_t i = 0;
    while (std::memcmp(&rounded_[i * size], &weight_[i * size], size) == 0) ++i;
    return Corrupt(
        "{}: element {} of the master of {} does not round to the weight; they are of different steps, or "
        "the "
        "shards are in another order than the files say",
        source_.name(), begin + i, weight.spec.name);
  }

  CheckpointSource& source_;
  const uint64_t block_bytes_;
  std::vector<std::byte> master_, rounded_, weight_;
};

}  // namespace

Result<MasterProof> ProveMasters(CheckpointSource& source, uint64_t max_memory) {
  MasterProof proof;
  Prover prover(source, BlockBytesFor(max_memory));
  for (const MasterPair pair : PairsOf(source.catalog())) {
    CAIRN_RETURN_IF_ERROR(prover.Check(pair));
    ++proof.parameters;
    proof.elements += source.catalog().tensors[pair.master].spec.shape.Volume();
  }
  return proof;
}

}  // namespace cairn
