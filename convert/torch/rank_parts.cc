// A DTensor's placements say how each dimension of the mesh cuts the tensor, one after the other: Shard
// halves what the dimensions before it left. FSDP2 after tensor parallelism cuts the other way round: its
// dimension comes first in the mesh, and is a _StridedShard that cuts what the later ones left. `shard_order`
// of newer versions says it for each dimension of the tensor.

#include "convert/torch/rank_parts.h"

#include <algorithm>

namespace cairn {
namespace {

const PyValue* Attribute(const PyValue* object, std::string_view name) {
  return object ? Find(*object, name) : nullptr;
}

bool IsSequence(const PyValue* value) {
  return value && (value->is(PyKind::kTuple) || value->is(PyKind::kList));
}

// One extent a dimension of the mesh, whose older form is a tensor of ranks.
std::optional<Dims> MeshShape(const PyValue* mesh) {
  if (const auto shape = AsDims(Attribute(Attribute(mesh, "_layout"), "shape"))) return shape;
  const PyValue* ranks = Attribute(mesh, "mesh");
  return ranks && ranks->is(PyKind::kTensor) ? std::optional(ranks->tensor->shape) : std::nullopt;
}

struct Placement {
  std::optional<int> dim;             // of the tensor; nothing: each rank has all of it
  std::optional<int64_t> strided_by;  // cuts before it, of later dimensions of the mesh
};

Result<Placement> PlacementOf(const PyValue& value, int rank) {
  if (value.IsNamed("Replicate")) return Placement();
  const auto dim = AsInt(Find(value, "dim"));
  const bool strided = value.IsNamed("_StridedShard");
  if (!strided && !value.IsNamed("Shard"))
    return NotSupported("its placement is {}, and only Shard and Replicate say which part it is",
                        value.ClassName());
  if (!dim || *dim < 0 || *dim >= rank) return Corrupt("its Shard names no dimension of it");
  Placement placement{.dim = static_cast<int>(*dim)};
  if (strided) placement.strided_by = AsInt(Find(value, "split_factor")).value_or(0);
  return placement;
}

// The dimensions of the mesh that cut dimension `dim`, in the order in which they do.
Result<std::vector<int>> CutsOf(int dim, const std::vector<Placement>& placements, const Dims& mesh,
                                const PyValue* shard_order) {
  std::vector<int> plain, strided;
  uint64_t later = 1;
  for (int i = mesh.rank() - 1; i >= 0; --i) {
    if (placements[i].dim != dim) continue;
    if (placements[i].strided_by && static_cast<uint64_t>(*placements[i].strided_by) != later)
      return NotSupported("its _StridedShard has split_factor {}, but later dimensions cut it in {}",
                          *placements[i].strided_by, later);
    (placements[i].strided_by ? strided : plain).push_back(i);
    later *= mesh[i];
  }
  std::ranges::reverse(plain);
  plain.insert(plain.end(), strided.begin(), strided.end());
  if (!strided.empty() || !IsSequence(shard_order)) return plain;
  for (const PyValue* entry : shard_order->items) {  // (dimension of the tensor, dimensions of the mesh)
    const auto order = AsDims(ItemOf(entry, 1));
    if (AsInt(ItemOf(entry, 0)) != dim || !order) continue;
    const std::vector<int> told(order->begin(), order->end());
    if (!std::ranges::is_permutation(told, plain))
      return Corrupt("its shard_order and its placements name other dimensions");
    return told;
  }
  return plain;
}

Result<RankParts> PartsOfDTensor(const PyValue& state) {
  const PyValue* spec = FindAttribute(&state, "_spec");
  const PyValue* mesh = Attribute(spec, "mesh");
  const PyValue* local = FindAttribute(&state, "_local_tensor");
  const PyValue* placements = Attribute(spec, "placements");
  const PyValue* meta = Attribute(spec, "tensor_meta");
  const auto shape = AsDims(meta && !meta->items.empty() ? meta->items[0] : Attribute(meta, "shape"));
  const auto sizes = MeshShape(mesh), at = AsDims(Attribute(mesh, "_coordinate_on_dim"));
  if (!local || !local->is(PyKind::kTensor) || !shape || !sizes || !at || !IsSequence(placements) ||
      at->rank() != sizes->rank() || placements->items.size() != static_cast<size_t>(sizes->rank()))
    return Corrupt("it is a DTensor without its shape, mesh, place in the mesh, or placements");
  if (!CheckedBytes(*shape, 1) || !CheckedBytes(*sizes, 1)) return Corrupt("its shape is too large");
  std::vector<Placement> found;
  for (const PyValue* placement : placements->items) {
    CAIRN_ASSIGN_OR_RETURN(const Placement one, PlacementOf(*placement, shape->rank()));
    found.push_back(one);
  }
  Box box = Box::Whole(*shape);
  for (int dim = 0; dim < shape->rank(); ++dim) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<int> cuts,
                           CutsOf(dim, found, *sizes, Attribute(spec, "shard_order")));
    for (const int i : cuts) {
      if ((*at)[i] >= (*sizes)[i]) return Corrupt("its place is outside of its mesh");
      const uint64_t extent = box.extent[dim], share = (extent + (*sizes)[i] - 1) / (*sizes)[i];
      const uint64_t begin = std::min(extent, (*at)[i] * share);
      box.offset[dim] += begin;
      box.extent[dim] = std::min(share, extent - begin);
    }
  }
  return RankParts{*shape, {{box, local}}, sizes->Volume()};
}

// (local shards, metadata, ...) of its __getstate__.
Result<RankParts> PartsOfShardedTensor(const PyValue& state) {
  const PyValue* shards = ItemOf(&state, 0);
  const auto shape = AsDims(Attribute(ItemOf(&state, 1), "size"));
  if (!IsSequence(shards) || !shape) return Corrupt("it is a ShardedTensor without its shape or its shards");
  if (!CheckedBytes(*shape, 1)) return Corrupt("its shape is too large");
  RankParts parts{.shape = *shape};
  for (const PyValue* shard : shards->items) {
    const PyValue *tensor = Find(*shard, "tensor"), *metadata = Find(*shard, "metadata");
    const auto offset = AsDims(Attribute(metadata, "shard_offsets"));
    const auto extent = AsDims(Attribute(metadata, "shard_sizes"));
    if (!tensor || !tensor->is(PyKind::kTensor) || !offset || !extent || offset->rank() != extent->rank())
      return Corrupt("it is a ShardedTensor with a shard that has no place");
    parts.parts.push_back({{*offset, *extent}, tensor});
  }
  const PyValue* all = Attribute(ItemOf(&state, 1), "shards_metadata");
  if (IsSequence(all)) parts.ranks = std::max<uint64_t>(1, all->items.size());
  return parts;
}

}  // namespace

// Both are pickled as _rebuild_from_type_v2(function, class, arguments, state).
Result<std::optional<RankParts>> RankPartsOf(const PyValue& value) {
  if (!value.is(PyKind::kObject) || value.text != "_rebuild_from_type_v2" || value.items.size() != 4 ||
      !value.items[1]->is(PyKind::kGlobal))
    return std::optional<RankParts>();
  const bool sharded = value.items[1]->IsNamed("ShardedTensor");
  if (!sharded && !value.items[1]->IsNamed("DTensor")) return std::optional<RankParts>();
  const PyValue& state = *value.items[3];
  CAIRN_ASSIGN_OR_RETURN(RankParts parts, sharded ? PartsOfShardedTensor(state) : PartsOfDTensor(state));
  const Box whole = Box::Whole(parts.shape);
  for (const RankPart& part : parts.parts) {
    if (part.box.rank() != whole.rank() || !Contains(whole, part.box))
      return Corrupt("its part {} is outside of its shape {}", ToString(part.box), ToString(parts.shape));
    if (!(part.value->tensor->shape == part.box.extent))
      return Corrupt("its part has shape {}, but its placements say {}", ToString(part.value->tensor->shape),
                     ToString(part.box.extent));
  }
  return std::optional(std::move(parts));
}

}  // namespace cairn
