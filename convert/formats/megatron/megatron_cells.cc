#include "convert/formats/megatron/megatron_cells.h"

#include <algorithm>
#include <map>

namespace cairn {
namespace {

// The shape of a rank's box, the cell of the state's grid.
Result<Dims> CellShape(const DcpTensor& state, const Dims& weight) {
  const Dims& grid = state.shape;
  const auto unlike = [&] {
    return NotSupported("{} of shape {} is not a grid of flattened parts of a weight of shape {}", state.name,
                        ToString(grid), ToString(weight));
  };
  if (grid.rank() != weight.rank() + 1) return unlike();
  Dims cell = weight;
  for (int i = 0; i < weight.rank(); ++i) {
    if (grid[i] == 0 || weight[i] % grid[i] != 0) return unlike();
    cell[i] = weight[i] / grid[i];
  }
  if (cell.Volume() != grid[weight.rank()]) return unlike();
  return cell;
}

}  // namespace

void AppendExtents(const StoredArray& part, uint64_t begin, StoredArray& whole) {
  for (StoredExtent extent : part.extents) {
    extent.range = {extent.range.begin + begin, extent.range.end + begin};
    whole.extents.push_back(extent);
  }
}

Result<StoredArray> JoinChunks(const DcpTensor& tensor, std::vector<const DcpChunk*> chunks,
                               const Dims& shape, DcpItems& items, StoredBuilder& builder) {
  const int last = tensor.shape.rank() - 1;
  std::ranges::sort(chunks, {}, [&](const DcpChunk* chunk) { return chunk->box.offset[last]; });
  StoredArray joined{tensor.name, Dtype::kF32, shape, {}};
  uint64_t end = 0;
  for (const DcpChunk* chunk : chunks) {
    if (chunk->box.offset[last] != end)
      return Corrupt("{} has a hole or an overlap at element {} of what begins at {}", tensor.name, end,
                     ToString(chunks.front()->box.offset));
    CAIRN_ASSIGN_OR_RETURN(const StoredArray part,
                           items.Array(tensor, *chunk, builder.AddFile(chunk->item.file)));
    if (part.transposed || (end > 0 && part.dtype != joined.dtype))
      return NotSupported("a chunk of {} is transposed or has a different type", tensor.name);
    joined.dtype = part.dtype;
    AppendExtents(part, end, joined);
    end += chunk->box.extent[last];
  }
  if (end != tensor.shape[last]) return Corrupt("{} ends at element {}", tensor.name, end);
  return joined;
}

Result<std::vector<MegatronCell>> CellsOf(const DcpTensor& state, const Dims& weight, DcpItems& items,
                                          StoredBuilder& builder) {
  CAIRN_ASSIGN_OR_RETURN(const Dims shape, CellShape(state, weight));
  std::map<std::string, std::vector<const DcpChunk*>> chunks;  // of each cell
  for (const DcpChunk& chunk : state.chunks) {
    Box cell = chunk.box;
    cell.offset[weight.rank()] = 0;
    cell.extent[weight.rank()] = 1;
    if (cell.Volume() != 1)
      return NotSupported("{} has a chunk of shape {}, of several ranks", state.name,
                          ToString(chunk.box.extent));
    chunks[ToString(cell.offset)].push_back(&chunk);
  }
  std::vector<MegatronCell> cells;
  for (auto& [name, of_cell] : chunks) {
    MegatronCell cell{Box::Whole(shape), {}};
    for (int i = 0; i < shape.rank(); ++i) cell.box.offset[i] = of_cell.front()->box.offset[i] * shape[i];
    CAIRN_ASSIGN_OR_RETURN(cell.array, JoinChunks(state, std::move(of_cell), shape, items, builder));
    cells.push_back(std::move(cell));
  }
  return cells;  // StoredSource checks that the whole weight is covered
}

}  // namespace cairn
