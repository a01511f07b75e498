// One thread reads and the caller's thread visits. Four slots of memory are passed between them: `filled_`
// and `used_` count blocks, and a slot is free again when its block was visited. The source gets the whole
// sequence of boxes before the first read, to read ahead, too. BlockCursor finds the outermost dimension of
// which one index fits into a block, and takes as many indices of it as fit.

#include "convert/stream/block_stream.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <thread>

#include "ckpt/base/threads.h"
#include "ckpt/io/page_buffer.h"

namespace cairn {
namespace {

constexpr uint64_t kMinBlockBytes = 4096;
constexpr uint64_t kMaxReaderCacheBytes = 128 << 20;

uint64_t InnerVolume(const Dims& shape, int depth) {
  uint64_t volume = 1;
  for (int i = depth + 1; i < shape.rank(); ++i) volume *= shape[i];
  return volume;
}

// Buffers that pass between the thread that reads and the one that visits.
class ReadAhead {
 public:
  ReadAhead(CheckpointSource& reader, BoxSequence blocks, const std::function<void(const Block&)>& see)
      : reader_(reader), blocks_(std::move(blocks)), see_(see), thread_([this] { Run(); }) {}
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // The next block, valid until Release(); null after the last one.
  Result<std::optional<Block>> Next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return filled_ > used_ || finished_; });
    if (filled_ > used_) return std::optional(slots_[used_ % kBlocksInFlight].block);
    if (!status_.ok()) return status_;
    return std::optional<Block>();
  }

  void Release() {
    {
      const std::lock_guard lock(mutex_);
      ++used_;
    }
    changed_.notify_all();
  }

 private:
  struct Slot {
    Block block;
    std::unique_ptr<PageBuffer> memory;
  };

  void Run() {
    Status status = Caught([this] { return ReadBlocks(); });
    reader_.ReadAhead({});
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    finished_ = true;
    changed_.notify_all();
  }

  Status ReadBlocks() {
    reader_.ReadAhead(blocks_);
    while (const std::optional<TensorBox> next = blocks_()) {
      Slot* slot = WaitForFreeSlot();
      if (slot == nullptr) return OkStatus();
      const auto& [tensor, box] = *next;
      const TensorEntry& entry = reader_.catalog().tensors[tensor];
      const uint64_t bytes = box.Volume() * SizeOf(entry.dtype);
      if (!slot->memory || slot->memory->capacity < bytes) slot->memory = std::make_unique<PageBuffer>(bytes);
      const std::span out(slot->memory->data(), bytes);
      slot->block = {tensor, box, FlatIndex(Box::Whole(entry.spec.shape), box.offset), out};
      CAIRN_RETURN_IF_ERROR(reader_.ReadBox(tensor, box, out));
      if (see_) see_(slot->block);
      const std::lock_guard lock(mutex_);
      ++filled_;
      changed_.notify_all();
    }
    return OkStatus();
  }

  // Null once the visitor has stopped.
  Slot* WaitForFreeSlot() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return filled_ - used_ < kBlocksInFlight || stop_; });
    return stop_ ? nullptr : &slots_[filled_ % kBlocksInFlight];
  }

  CheckpointSource& reader_;
  BoxSequence blocks_;
  const std::function<void(const Block&)>& see_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Slot, kBlocksInFlight> slots_;
  uint64_t filled_ = 0;  // blocks read so far
  uint64_t used_ = 0;    // blocks visited so far
  bool finished_ = false;
  bool stop_ = false;
  Status status_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

uint64_t BlockBytesFor(uint64_t max_memory) {
  return std::clamp(max_memory / 8 / kBlocksInFlight, kMinBlockBytes, kMaxBlockBytes);
}

uint64_t ReaderCacheFor(uint64_t max_memory) { return std::min(max_memory / 2, kMaxReaderCacheBytes); }

BlockCursor::BlockCursor(const Dims& shape, uint64_t max_elements)
    : shape_(shape), at_(Dims::Filled(shape.rank(), 0)), done_(shape.Volume() == 0) {
  while (depth_ + 1 < shape.rank() && InnerVolume(shape, depth_) > max_elements) ++depth_;
  rows_ = std::max<uint64_t>(1, max_elements / std::max<uint64_t>(1, InnerVolume(shape, depth_)));
}

Box BlockCursor::box() const {
  Box box{at_, shape_};
  for (int i = 0; i < depth_; ++i) box.extent[i] = 1;
  if (shape_.rank() > 0) box.extent[depth_] = std::min(rows_, shape_[depth_] - at_[depth_]);
  return box;
}

void BlockCursor::Advance() {
  if (shape_.rank() == 0) {
    done_ = true;
    return;
  }
  at_[depth_] += rows_;
  for (int i = depth_; at_[i] >= shape_[i]; --i) {
    at_[i] = 0;
    if (i == 0) {
      done_ = true;
      return;
    }
    ++at_[i - 1];
  }
}

BoxSequence BlocksOf(const TensorTable& catalog, std::vector<std::vector<uint32_t>> sets,
                     uint64_t block_bytes) {
  return [&catalog, sets = std::move(sets), block_bytes, set = size_t{0}, turn = size_t{0},
          cursor = std::optional<BlockCursor>()]() mutable -> std::optional<TensorBox> {
    for (; set < sets.size(); ++set, cursor.reset()) {
      if (!cursor) {
        uint64_t size = 1;
        for (const uint32_t tensor : sets[set]) size = std::max(size, SizeOf(catalog.tensors[tensor].dtype));
        cursor.emplace(catalog.tensors[sets[set][0]].spec.shape, block_bytes / size);
      }
      if (cursor->done()) continue;
      const TensorBox next{sets[set][turn], cursor->box()};
      turn = (turn + 1) % sets[set].size();
      if (turn == 0) cursor->Advance();
      return next;
    }
    return std::nullopt;
  };
}

std::vector<std::vector<uint32_t>> EachAlone(std::span<const uint32_t> tensors) {
  std::vector<std::vector<uint32_t>> sets;
  for (const uint32_t tensor : tensors) sets.push_back({tensor});
  return sets;
}

Status StreamBlocks(CheckpointSource& reader, std::span<const uint32_t> tensors, uint64_t block_bytes,
                    const std::function<Status(const Block&)>& visit) {
  CAIRN_RETURN_IF_ERROR(
      StreamPart(reader, BlocksOf(reader.catalog(), EachAlone(tensors), block_bytes), visit));
  return reader.CheckRead();
}

Status StreamPart(CheckpointSource& reader, BoxSequence blocks,
                  const std::function<Status(const Block&)>& visit,
                  const std::function<void(const Block&)>& see) {
  ReadAhead ahead(reader, std::move(blocks), see);
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(const std::optional<Block> block, ahead.Next());
    if (!block) return OkStatus();
    CAIRN_RETURN_IF_ERROR(visit(*block));
    ahead.Release();
  }
}

std::vector<uint32_t> AllTensors(const TensorTable& catalog) {
  std::vector<uint32_t> tensors(catalog.tensors.size());
  std::iota(tensors.begin(), tensors.end(), 0);
  return tensors;
}

}  // namespace cairn
