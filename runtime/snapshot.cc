#include "runtime/snapshot.h"

#include <algorithm>
#include <cstring>

#include "ckpt/stream_copy.h"
#include "runtime/background_thread.h"

namespace cairn {
namespace {

constexpr uint64_t kInCacheBytes = 128 << 10;  // copied, then digested, before the lines leave the cache

}  // namespace

Snapshot::Snapshot(ShardPlan plan, std::vector<Source> sources, DeviceCopy copy)
    : plan_(std::move(plan)), sources_(std::move(sources)), device_copy_(std::move(copy)) {
  for (size_t i = 0; i < plan_.piece_count(); ++i) {
    const uint64_t bytes = plan_.piece(i).stored_bytes;
    for (uint64_t at = 0, index = 0; at < bytes; at += kChunkBytes, ++index)
      chunks_.push_back({i, index, plan_.OffsetOf(i) + at, std::min(kChunkBytes, bytes - at)});
  }
  std::ranges::sort(chunks_, {}, &Chunk::begin);
  is_copied_.assign(chunks_.size(), 0);
  copied_ = chunks_.size();  // nothing under way
}

Result<std::unique_ptr<Snapshot>> Snapshot::Make(ShardPlan plan, std::vector<Source> sources,
                                                 DeviceCopy copy) {
  std::unique_ptr<Snapshot> snapshot(new Snapshot(std::move(plan), std::move(sources), std::move(copy)));
  CAIRN_RETURN_IF_ERROR(snapshot->arena_.Reserve(snapshot->plan_.file_bytes()));
  return snapshot;
}

Snapshot::~Snapshot() { Complete(); }

void Snapshot::Begin(const StepIdentity& identity, std::vector<Base> bases, bool behind) {
  bases_ = std::move(bases);
  identity_ = identity;
  behind_ = behind;
  bound_ = false;
  next_ = copied_ = 0;
  std::ranges::fill(is_copied_, 0);
}

// Whole pieces go past the cache: the trainer waits, and the writer reads them from memory anyway.
void Snapshot::CopyNow(const StepIdentity& identity, std::vector<Base> bases) {
  Begin(identity, std::move(bases), false);
  for (size_t i = 0; i < sources_.size(); ++i)
    CopyBytes(sources_[i], 0, arena_.data() + plan_.OffsetOf(i), plan_.piece(i).stored_bytes);
  const std::lock_guard lock(mutex_);
  next_ = copied_ = chunks_.size();
}

void Snapshot::CopyBehind(const StepIdentity& identity, std::vector<Base> bases) {
  Begin(identity, std::move(bases), true);
  copier_ = std::thread([this] {
    BecomeBackgroundThread();
    plan_.Bind(identity_);
    {
      const std::lock_guard lock(mutex_);
      bound_ = true;
    }
    changed_.notify_all();
    CopyChunks();
  });
}

void Snapshot::Complete() {
  if (!copier_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return bound_; });
  }
  CopyChunks();
  copier_.join();
}

void Snapshot::CopyChunks() {
  Hasher hasher;
  while (true) {
    size_t chunk;
    {
      const std::lock_guard lock(mutex_);
      if (next_ == chunks_.size()) return;
      chunk = next_++;
    }
    CopyChunk(chunks_[chunk], hasher);
    MarkCopied(chunk);
  }
}

void Snapshot::CopyChunk(const Chunk& chunk, Hasher& hasher) {
  hasher.Reset(plan_.ChunkSeed(chunk.piece, chunk.index));
  for (uint64_t done = 0; done < chunk.bytes;) {
    const uint64_t count = std::min(kInCacheBytes, chunk.bytes - done);
    std::byte* to = arena_.data() + chunk.begin + done;
    CopyBytes(sources_[chunk.piece], chunk.index * kChunkBytes + done, to, count);
    hasher.Update({to, count});
    done += count;
  }
  plan_.SetDigest(chunk.piece, chunk.index, hasher.Finish());
}

void Snapshot::CopyBytes(const Source& source, uint64_t offset, std::byte* to, uint64_t bytes) const {
  const Base& base = bases_[source.part];
  const std::byte* from = base.data + source.offset + offset;
  if (base.on_gpu)
    device_copy_(to, from, bytes);
  else if (bytes > kInCacheBytes)
    StreamCopy(to, {from, bytes});
  else
    std::memcpy(to, from, bytes);
}

void Snapshot::MarkCopied(size_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    is_copied_[chunk] = 1;
    while (copied_ < chunks_.size() && is_copied_[copied_]) ++copied_;
  }
  changed_.notify_all();
}

void Snapshot::WaitFor(uint64_t image_end) {
  if (!behind_) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return copied_ == chunks_.size() || chunks_[copied_].begin >= image_end; });
}

}  // namespace cairn
