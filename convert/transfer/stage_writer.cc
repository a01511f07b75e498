#include "convert/transfer/stage_writer.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>

#include "ckpt/base/threads.h"
#include "ckpt/model/layout.h"

namespace cairn {
namespace {

constexpr uint64_t kMinWriteBytes = 64 << 10;  // one write
constexpr uint64_t kMaxWriteBytes = 4 << 20;
constexpr int kWritesInFlight = 4;

}  // namespace

int OpenPieces(const Topology& target) { return 1 + std::max(target.tp, target.size(Axis::kEtp)); }

WriteRingOptions RingFor(uint64_t max_memory, int jobs, const Topology& target) {
  const int in_flight = std::max(kWritesInFlight, jobs);
  const uint64_t share = max_memory / 4 / (OpenPieces(target) + in_flight);
  return {.buffer_bytes = std::bit_floor(std::clamp(share, kMinWriteBytes, kMaxWriteBytes)),
          .in_flight = in_flight};
}

StageWriter::StageWriter(const StepPlan& plan) : plan_(plan), targets_(plan.tensors().size()) {}

Result<std::unique_ptr<StageWriter>> StageWriter::Create(FileSystem& fs, WriteRing& ring,
                                                         const std::string& directory,
                                                         const StepIdentity& identity, const StepPlan& plan,
                                                         int stage, Direct direct) {
  std::unique_ptr<StageWriter> writer(new StageWriter(plan));
  for (PlannedShard& planned : plan.Stage(stage)) {
    for (size_t i = 0; i < planned.pieces.size(); ++i) {
      const Piece& piece = planned.pieces[i];
      writer->targets_[piece.tensor].push_back({writer->shards_.size(), i, piece.box, piece.range});
    }
    CAIRN_ASSIGN_OR_RETURN(auto shard, ShardWriter::Create(fs, ring, directory,
                                                           {ShardName(planned.rank), identity, plan.tensors(),
                                                            std::move(planned.pieces)},
                                                           direct, Existing::kResume));
    writer->shards_.push_back(std::move(shard));
  }
  for (uint32_t i = 0; i < writer->targets_.size(); ++i)
    if (!writer->targets_[i].empty()) writer->tensors_.push_back(i);
  return writer;
}

Status StageWriter::Append(const Block& block) {
  for (const Target& target : targets_[block.tensor]) CAIRN_RETURN_IF_ERROR(Scatter(target, block));
  return OkStatus();
}

Status StageWriter::Scatter(const Target& target, const Block& block) {
  const uint64_t element_bytes = SizeOf(plan_.tensors()[block.tensor].dtype);
  const FlatRange elements = CommonRun(target.box, target.range, block.box);
  if (elements.size() == 0) return OkStatus();
  ShardWriter& shard = *shards_[target.shard];
  Status status;
  for (const Segment& segment : Decompose(target.box, elements))
    ForEachRun(segment.box, block.box, segment.box, [&](uint64_t source, uint64_t, uint64_t count) {
      if (status.ok())
        status =
            shard.Append(target.piece, block.bytes.subspan(source * element_bytes, count * element_bytes));
    });
  return status;
}

Result<std::vector<ShardReceipt>> StageWriter::Finish(int threads) {
  std::vector<ShardReceipt> receipts(shards_.size());
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  Status first;
  RunOnThreads(std::min(threads, static_cast<int>(shards_.size())), [&] {
    for (size_t i = next++; i < shards_.size(); i = next++) {
      Result<ShardReceipt> receipt = shards_[i]->Finish();
      const std::lock_guard lock(mutex);
      if (receipt.ok())
        receipts[i] = *std::move(receipt);
      else if (first.ok())
        first = receipt.status();
    }
  });
  CAIRN_RETURN_IF_ERROR(first);
  return receipts;
}

}  // namespace cairn
