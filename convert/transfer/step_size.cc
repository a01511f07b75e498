// Small steps are laid out for an exact size; for large ones measured overheads are added to the data.

#include "convert/transfer/step_size.h"

#include "ckpt/model/layout.h"
#include "ckpt/step/shard_plan.h"

namespace cairn {
namespace {

// Bytes of HDF5 and the catalogs beside the data, measured on steps of 60 to 7,700 pieces, rounded up.
constexpr uint64_t kShardOverheadBytes = 128 << 10;
constexpr uint64_t kPieceOverheadBytes = 7 << 10;        // in its shard
constexpr uint64_t kPlacedPieceOverheadBytes = 1 << 10;  // in one of more than kMostAlignedDatasets
constexpr uint64_t kIndexOverheadBytes = 150 << 10;
constexpr uint64_t kIndexedPieceBytes = 200;  // and those of its chunks
constexpr uint64_t kIndexedTensorBytes = 32;
constexpr uint64_t kManifestOverheadBytes = 16 << 10;
constexpr uint64_t kManifestFileBytes = 128;
// Steps of at most this many pieces and bytes are laid out for their exact size: metadata are much of a small
// step. They are little of a large one, and laying it out takes a good part of the time that writing it
// takes.
constexpr uint64_t kLaidOutPieces = 8192;
constexpr uint64_t kLaidOutBytes = 256 << 20;

// The bytes of a shard's file.
uint64_t EstimatedShardBytes(const StepPlan& plan, const PlannedShard& shard, bool lay_out) {
  if (lay_out) {
    const auto laid_out =
        ShardPlan::Make(ShardName(shard.rank), {std::string(32, '0'), 0}, plan.tensors(), shard.pieces);
    if (laid_out.ok()) return laid_out->file_bytes();
  }
  const uint64_t overhead =
      shard.pieces.size() < kMostAlignedDatasets ? kPieceOverheadBytes : kPlacedPieceOverheadBytes;
  uint64_t bytes = kShardOverheadBytes;
  for (const Piece& piece : shard.pieces)
    bytes += PageUp(piece.range.size() * SizeOf(plan.tensors()[piece.tensor].dtype)) + overhead;
  return bytes;
}

}  // namespace

StepSize EstimateStepSize(const StepPlan& plan) {
  StepSize size;
  const auto ranks = static_cast<uint64_t>(plan.topology().stage_size());
  uint64_t tensor_bytes = 0;
  for (const TensorEntry& tensor : plan.tensors()) tensor_bytes += tensor.bytes();
  const bool lay_out = plan.tensors().size() * ranks <= kLaidOutPieces && tensor_bytes <= kLaidOutBytes;
  size.files = 2;  // index.h5 and manifest.json
  size.file_bytes =
      kIndexOverheadBytes + plan.tensors().size() * kIndexedTensorBytes + kManifestOverheadBytes;
  for (int stage = 0; stage < plan.topology().pp; ++stage) {
    for (const PlannedShard& shard : plan.Stage(stage)) {
      ++size.files;
      size.file_bytes += kManifestFileBytes + EstimatedShardBytes(plan, shard, lay_out);
      for (const Piece& piece : shard.pieces) {
        const uint64_t bytes = piece.range.size() * SizeOf(plan.tensors()[piece.tensor].dtype);
        size.data_bytes += bytes;
        size.file_bytes += kIndexedPieceBytes + 3 * ChunkCount(bytes) * sizeof(Digest);
      }
    }
  }
  return size;
}

Result<ProgramSize> SizeOfCopies(const CheckpointSource& source, const StepPlan& plan,
                                 std::span<const WrittenTensor> tensors) {
  ProgramSize size;
  for (int stage = 0; stage < plan.topology().pp; ++stage) {
    std::vector<Region> regions;
    for (const PlannedShard& shard : plan.Stage(stage))
      for (const Piece& piece : shard.pieces)
        regions.push_back({.tensor = tensors[piece.tensor].source,
                           .file = static_cast<uint32_t>(shard.rank),
                           .box = piece.box,
                           .range = piece.range});
    const RegionList wanted(std::move(regions));
    CAIRN_ASSIGN_OR_RETURN(const CopyProgram program, PlanCopies(source.catalog(), source.regions(), wanted));
    size += SizeOf(program, source.catalog(), source.regions(), wanted);
  }
  return size;
}

}  // namespace cairn
