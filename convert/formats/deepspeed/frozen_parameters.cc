#include "convert/formats/deepspeed/frozen_parameters.h"

#include <algorithm>

namespace cairn {
namespace {

// Elements behind the parameter in the last piece are alignment.
Result<StoredArray> JoinPieces(const std::string& name, const Dims& shape,
                               const std::vector<const TorchFile*>& pieces, StoredBuilder& builder) {
  if (!CheckedBytes(shape, 8)) return Corrupt("{} has an impossible size", name);
  StoredArray joined{name, Dtype::kF32, shape};
  const uint64_t volume = shape.Volume();
  uint64_t end = 0;
  for (const TorchFile* file : pieces) {
    const PyValue* fragments = Find(file->root(), "frozen_param_fragments");
    const PyValue* value = fragments ? FindKind(*fragments, name, PyKind::kTensor) : nullptr;
    if (!value) return NotFound("{} is frozen, but {} has no fragment of it", name, file->name());
    CAIRN_ASSIGN_OR_RETURN(const StoredArray part, builder.ArrayIn(*file, *value->tensor, name));
    if (part.transposed || (file != pieces[0] && part.dtype != joined.dtype))
      return NotSupported("a fragment of {} is stored transposed or in a type of its own", name);
    joined.dtype = part.dtype;
    const uint64_t all = part.shape.Volume(), count = std::min(all, volume - end);
    Append(joined, SliceOf(part, 0, {count}), end);
    if (count < all)
      builder.account.Leave(Fate::kAlignment, builder.catalog, SliceOf(part, count, {all - count}));
    end += count;
  }
  if (end != volume) return Corrupt("{} has {} elements in its fragments, its shape {}", name, end, volume);
  return joined;
}

}  // namespace

Result<std::vector<StoredArray>> ReadFrozen(const std::vector<const TorchFile*>& pieces,
                                            StoredBuilder& builder) {
  std::vector<StoredArray> frozen;
  const PyValue& root = pieces[0]->root();
  for (const auto& [name, shape] : ShapesIn(FindKind(root, "frozen_param_shapes", PyKind::kDict))) {
    const PyValue* fragments = FindKind(root, "frozen_param_fragments", PyKind::kDict);
    if (!shape || !fragments || !FindKind(*fragments, name, PyKind::kTensor))
      return NotFound("{} is among its frozen parameters but has no fragment", name);
    CAIRN_ASSIGN_OR_RETURN(StoredArray joined, JoinPieces(name, *shape, pieces, builder));
    frozen.push_back(std::move(joined));
  }
  return frozen;
}

}  // namespace cairn
