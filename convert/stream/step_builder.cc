// The calls are in the order in which a step is made: Create() checks the space and makes the partial
// directory, each stage's shards are written and ended, Seal() writes index and manifest, and Publish()
// renames. The manifest comes last, since a directory without one is not a step. The estimate at the end of
// the file lays small steps out, to be exact; for large ones it adds measured overheads to the data.

#include "convert/stream/step_builder.h"

#include <algorithm>
#include <iterator>

#include "ckpt/model/layout.h"
#include "ckpt/run/tokenizer_files.h"

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
// Steps of up to so many pieces are laid out for their exact size: metadata are much of a small step, and
// little of a large one.
constexpr uint64_t kLaidOutPieces = 8192;

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

StepBuilder::StepBuilder(FileSystem& fs, StepInfo info, const StepPlan& plan,
                         const StepBuilderOptions& options)
    : fs_(fs), info_(std::move(info)), plan_(plan), options_(options) {}

Result<std::unique_ptr<StepBuilder>> StepBuilder::Create(FileSystem& fs, const std::string& run_dir,
                                                         const StepInfo& info, const StepPlan& plan,
                                                         const StepBuilderOptions& options) {
  std::unique_ptr<StepBuilder> builder(new StepBuilder(fs, info, plan, options));
  CAIRN_ASSIGN_OR_RETURN(builder->committer_,
                         Committer::Create(fs, {.run_dir = run_dir,
                                                .step = info.identity.step,
                                                .need_bytes = EstimateStepSize(plan).file_bytes}));
  builder->ring_ =
      std::make_unique<WriteRing>(fs, RingFor(options.max_memory, options.jobs, plan.topology().tp));
  return builder;
}

Result<std::vector<uint32_t>> StepBuilder::BeginStage() {
  CAIRN_ASSIGN_OR_RETURN(writer_, StageWriter::Create(fs_, *ring_, committer_->partial(), info_.identity,
                                                      plan_, stage_, options_.direct));
  return writer_->tensors();
}

Status StepBuilder::EndStage() {
  CAIRN_ASSIGN_OR_RETURN(std::vector<ShardReceipt> receipts, writer_->Finish());
  std::ranges::move(receipts, std::back_inserter(receipts_));
  writer_.reset();
  ++stage_;
  return OkStatus();
}

Result<std::unique_ptr<StepReader>> StepBuilder::Seal() {
  CAIRN_ASSIGN_OR_RETURN(StepSeal seal, MakeSeal(info_, plan_.tensors(), receipts_));
  CAIRN_RETURN_IF_ERROR(CopyBeside(fs_, committer_->partial(), options_.beside, seal));
  CAIRN_RETURN_IF_ERROR(committer_->Seal(seal));
  CAIRN_ASSIGN_OR_RETURN(auto reader, committer_->ReadBack(seal));
  reader->SetCacheBytes(ReaderCacheFor(options_.max_memory));
  return reader;
}

StepSize EstimateStepSize(const StepPlan& plan) {
  StepSize size;
  const Topology& topology = plan.topology();
  const auto ranks = static_cast<uint64_t>(topology.tp) * static_cast<uint64_t>(topology.dp);
  const bool lay_out = plan.tensors().size() * ranks <= kLaidOutPieces;
  size.files = 2;  // index.h5 and manifest.json
  size.file_bytes =
      kIndexOverheadBytes + plan.tensors().size() * kIndexedTensorBytes + kManifestOverheadBytes;
  for (int stage = 0; stage < topology.pp; ++stage) {
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

}  // namespace cairn
