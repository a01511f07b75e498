#include "runtime/saving/state_snapshot.h"

#include "ckpt/model/layout.h"
#include "runtime/saving/load_state.h"

namespace cairn {

std::vector<TensorEntry> TensorsOf(const StateBuffers& buffers) {
  std::vector<TensorEntry> tensors;
  for (const ParameterSpec& spec : buffers.specs)
    for (const StateBuffers::Part& part : buffers.parts) tensors.push_back({spec, part.role, part.dtype});
  return tensors;
}

Result<std::unique_ptr<Snapshot>> MakeStateSnapshot(const StateBuffers& buffers,
                                                    std::vector<TensorEntry> tensors,
                                                    const CheckpointerOptions& options,
                                                    const std::string& run, int rank) {
  std::vector<Piece> pieces;
  std::vector<Snapshot::Source> sources;
  const auto add = [&](size_t tensor, const Box& box, FlatRange range, Snapshot::Source source) {
    pieces.push_back(
        {.tensor = static_cast<uint32_t>(tensor), .file = 0, .box = box, .range = range, .chunks = {}});
    sources.push_back(source);
  };
  const size_t roles = buffers.parts.size();
  for (const PlacedPiece& placed : PiecesOf(buffers.layout, options.topology, rank))
    for (size_t role = 0; role < roles; ++role) {
      const StateBuffers::Part& part = buffers.parts[role];
      add(placed.index * roles + role, placed.box, placed.range,
          {role, (placed.flat_begin - part.covers.begin) * SizeOf(part.dtype)});
    }
  if (!buffers.rng_state.empty()) {
    const TensorEntry rng = RngTensor(options.topology, rank, buffers.rng_state.size());
    add(tensors.size(), Box::Whole(rng.spec.shape), {0, rng.bytes()}, {roles, 0});
    tensors.push_back(rng);
  }
  CAIRN_ASSIGN_OR_RETURN(ShardPlan plan,
                         ShardPlan::Make(ShardName(rank), {run, 0}, tensors, std::move(pieces)));
  std::unique_ptr<DeviceSnapshot> device;
  if (options.device_snapshot) {
    CAIRN_ASSIGN_OR_RETURN(device, options.device_snapshot());
  }
  const auto copy = [&options](void* to, const void* from, size_t bytes) {
    options.device_copy(to, from, bytes, /*to_device=*/false);
  };
  return Snapshot::Make(std::move(plan), std::move(sources), copy, std::move(device));
}

}  // namespace cairn
