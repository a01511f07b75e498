#include "convert/step_builder.h"

#include <algorithm>
#include <cstring>

#include "ckpt/layout.h"

namespace cairn {
namespace {

constexpr uint64_t kGatherBytes = 256 << 10;   // stays in the second-level cache
constexpr uint64_t kMinWriteBytes = 64 << 10;  // one write
constexpr uint64_t kMaxWriteBytes = 4 << 20;
constexpr int kWritesInFlight = 4;
// What HDF5 and the catalogs take beside the data, as measured on steps of 60 to 7,700 pieces, rounded up.
constexpr uint64_t kShardOverheadBytes = 128 << 10;
constexpr uint64_t kPieceOverheadBytes = 8 << 10;   // in its shard and in index.h5
constexpr uint64_t kTensorOverheadBytes = 6 << 10;  // in index.h5
constexpr uint64_t kManifestOverheadBytes = 64 << 10;

// A tensor cut by columns has one piece open for each tensor parallel rank, any other just one.
WriteRingOptions RingFor(const StepBuilderOptions& options, int tp) {
  const int in_flight = std::max(kWritesInFlight, options.jobs);
  const uint64_t share = options.max_memory / 4 / (tp + 1 + in_flight);
  const uint64_t bytes = std::clamp(share, kMinWriteBytes, kMaxWriteBytes) / kPageBytes * kPageBytes;
  return {.buffer_bytes = bytes, .in_flight = in_flight};
}

}  // namespace

StepBuilder::StepBuilder(FileSystem& fs, StepInfo info, const TargetPlan& plan,
                         const StepBuilderOptions& options)
    : fs_(fs), info_(std::move(info)), plan_(plan), options_(options), gather_(kGatherBytes) {}

Result<std::unique_ptr<StepBuilder>> StepBuilder::Create(FileSystem& fs, const std::string& run_dir,
                                                         const StepInfo& info, const TargetPlan& plan,
                                                         const StepBuilderOptions& options) {
  std::unique_ptr<StepBuilder> builder(new StepBuilder(fs, info, plan, options));
  builder->run_dir_ = run_dir;
  builder->nonce_ = NewNonce();
  builder->final_path_ = JoinPath(run_dir, StepDirName(info.identity.step));
  if (fs.Stat(builder->final_path_).ok())
    return AlreadyExists("{} is there already and is never overwritten; choose another directory",
                         builder->final_path_);
  CAIRN_RETURN_IF_ERROR(CheckFreeSpace(fs, run_dir, EstimateStepSize(plan).file_bytes));
  CAIRN_ASSIGN_OR_RETURN(
      builder->partial_,
      PartialDir::Make(fs, JoinPath(run_dir, PartialDirName(info.identity.step, builder->nonce_))));
  CAIRN_ASSIGN_OR_RETURN(builder->lock_, RunLock::Take(run_dir));
  builder->ring_ = std::make_unique<WriteRing>(fs, RingFor(options, plan.topology().tp));
  return builder;
}

Result<std::vector<uint32_t>> StepBuilder::BeginStage() {
  targets_.assign(plan_.tensors().size(), {});
  shards_.clear();
  for (PlannedShard& planned : plan_.Stage(stage_)) {
    for (size_t i = 0; i < planned.pieces.size(); ++i) {
      const Piece& piece = planned.pieces[i];
      targets_[piece.tensor].push_back({shards_.size(), i, piece.box, piece.range});
    }
    CAIRN_ASSIGN_OR_RETURN(
        auto shard,
        ShardWriter::Create(fs_, *ring_, partial_->path(), ShardName(planned.rank), info_.identity,
                            plan_.tensors(), std::move(planned.pieces), options_.direct));
    shards_.push_back(std::move(shard));
  }
  std::vector<uint32_t> tensors;
  for (uint32_t i = 0; i < targets_.size(); ++i)
    if (!targets_[i].empty()) tensors.push_back(i);
  return tensors;
}

Status StepBuilder::Append(const Block& block) {
  const uint64_t element_bytes = SizeOf(plan_.tensors()[block.tensor].dtype);
  for (const Target& target : targets_[block.tensor])
    if (const std::optional<Box> common = Intersect(target.box, block.box))
      CAIRN_RETURN_IF_ERROR(Scatter(target, block, *common, element_bytes));
  return OkStatus();
}

// `common` is contiguous in the target's box (block_stream.h), so what the target's range leaves of it is one
// run of the piece. Short runs of the block are gathered first: each append takes a lock and starts a digest.
Status StepBuilder::Scatter(const Target& target, const Block& block, const Box& common,
                            uint64_t element_bytes) {
  const uint64_t first = FlatIndex(target.box, common.offset);
  const uint64_t begin = std::max(first, target.range.begin);
  const uint64_t end = std::min(first + common.Volume(), target.range.end);
  if (begin >= end) return OkStatus();
  ShardWriter& shard = *shards_[target.shard];
  size_t gathered = 0;
  Status status;
  const auto flush = [&] {
    if (status.ok() && gathered > 0) status = shard.Append(target.piece, std::span(gather_).first(gathered));
    gathered = 0;
  };
  for (const Segment& segment : Decompose(common, {begin - first, end - first})) {
    ForEachRun(segment.box, block.box, segment.box, [&](uint64_t source, uint64_t, uint64_t count) {
      const auto run = block.bytes.subspan(source * element_bytes, count * element_bytes);
      if (gathered + run.size() > gather_.size()) flush();
      if (run.size() > gather_.size()) {
        if (status.ok()) status = shard.Append(target.piece, run);
        return;
      }
      std::memcpy(gather_.data() + gathered, run.data(), run.size());
      gathered += run.size();
    });
  }
  flush();
  return status;
}

Status StepBuilder::EndStage() {
  for (const auto& shard : shards_) {
    CAIRN_ASSIGN_OR_RETURN(ShardReceipt receipt, shard->Finish());
    receipts_.push_back(std::move(receipt));
  }
  shards_.clear();
  ++stage_;
  return OkStatus();
}

Result<std::unique_ptr<StepReader>> StepBuilder::Seal() {
  CAIRN_RETURN_IF_ERROR(SealStep(fs_, partial_->path(), info_, plan_.tensors(), receipts_));
  CAIRN_ASSIGN_OR_RETURN(auto reader, StepReader::Open(fs_, partial_->path()));
  reader->SetCacheBytes(ReaderCacheFor(options_.max_memory));
  return reader;
}

Status StepBuilder::Publish() {
  CAIRN_RETURN_IF_ERROR(PublishStep(fs_, run_dir_, info_.identity.step, nonce_));
  partial_->Keep();
  return OkStatus();
}

StepSize EstimateStepSize(const TargetPlan& plan) {
  StepSize size;
  uint64_t metadata = kManifestOverheadBytes + plan.tensors().size() * kTensorOverheadBytes;
  for (int stage = 0; stage < plan.topology().pp; ++stage) {
    for (const PlannedShard& shard : plan.Stage(stage)) {
      metadata += kShardOverheadBytes;
      ++size.files;
      for (const Piece& piece : shard.pieces) {
        const uint64_t bytes = piece.range.size() * SizeOf(plan.tensors()[piece.tensor].dtype);
        size.data_bytes += bytes;
        size.file_bytes += PageUp(bytes);
        metadata += kPieceOverheadBytes + 3 * ChunkCount(bytes) * sizeof(Digest);
      }
    }
  }
  size.file_bytes += metadata;
  size.files += 2;  // index.h5 and manifest.json
  return size;
}

}  // namespace cairn
