// To copy behind, the chunks of all pieces, in order of their place in the image, are one list of work. The
// copier takes chunks from it, and in Complete() the trainer does too, until none is left. `copied_` counts
// the leading chunks that are complete; the writer waits only for this count, and so writes the image front
// to back while it is still being copied. With a DeviceSnapshot the copier leaves out what lies on the GPU;
// then nothing from the first such chunk on counts until the device is done.

#include "runtime/snapshot/snapshot.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "ckpt/io/stream_copy.h"
#include "runtime/control/background_thread.h"

namespace cairn {
namespace {

constexpr uint64_t kInCacheBytes = 128 << 10;  // copied, then digested, before the lines leave the cache

// In huge pages if there are any.
Result<Mapping> TouchedMemory(size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return NoSpace("a snapshot needs {} bytes of memory: {}; use fewer ranks per node", bytes,
                   strerror(errno));
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return Mapping(memory, bytes);
}

}  // namespace

Snapshot::Snapshot(ShardPlan plan, std::vector<Source> sources, DeviceCopy copy,
                   std::unique_ptr<DeviceSnapshot> device)
    : plan_(std::move(plan)),
      sources_(std::move(sources)),
      device_copy_(std::move(copy)),
      device_(std::move(device)) {
  for (size_t i = 0; i < plan_.piece_count(); ++i) {
    const uint64_t bytes = plan_.piece(i).stored_bytes;
    for (uint64_t at = 0, index = 0; at < bytes; at += kChunkBytes, ++index)
      chunks_.push_back({i, index, plan_.OffsetOf(i) + at, std::min(kChunkBytes, bytes - at)});
  }
  std::ranges::sort(chunks_, {}, &Chunk::begin);
  is_copied_.assign(chunks_.size(), 0);
  copied_ = chunks_.size();  // nothing in progress
}

Result<std::unique_ptr<Snapshot>> Snapshot::Make(ShardPlan plan, std::vector<Source> sources, DeviceCopy copy,
                                                 std::unique_ptr<DeviceSnapshot> device) {
  std::unique_ptr<Snapshot> snapshot(
      new Snapshot(std::move(plan), std::move(sources), std::move(copy), std::move(device)));
  if (const uint64_t bytes = snapshot->plan_.file_bytes(); bytes > 0) {
    CAIRN_ASSIGN_OR_RETURN(snapshot->arena_, TouchedMemory(bytes));
  }
  if (snapshot->device_) CAIRN_RETURN_IF_ERROR(snapshot->device_->SetArena(snapshot->image()));
  return snapshot;
}

Snapshot::~Snapshot() {
  Complete();
  if (copier_.joinable()) copier_.join();
  if (device_) (void)device_->SetArena({});
}

void Snapshot::Begin(const StepIdentity& identity, std::vector<Base> bases, bool behind) {
  if (copier_.joinable()) copier_.join();
  bases_ = std::move(bases);
  identity_ = identity;
  behind_ = behind;
  bound_ = false;
  next_ = copied_ = 0;
  begun_ = status_ = OkStatus();
  std::ranges::fill(is_copied_, 0);
  on_host_ = std::ranges::count_if(chunks_, [this](const Chunk& chunk) { return !OnDevice(chunk.piece); });
}

// Whole pieces go past the cache: the trainer waits, and the writer reads them from memory anyway. A device's
// copy is several times as fast as one into memory that the driver does not know.
void Snapshot::CopyNow(const StepIdentity& identity, std::vector<Base> bases) {
  if (device_) {
    CopyBehind(identity, std::move(bases));
    if (copier_.joinable()) copier_.join();
    return;
  }
  Begin(identity, std::move(bases), false);
  for (size_t i = 0; i < sources_.size(); ++i)
    CopyBytes(sources_[i], 0, image().data() + plan_.OffsetOf(i), plan_.piece(i).stored_bytes);
  StreamFence();
  const std::lock_guard lock(mutex_);
  next_ = copied_ = chunks_.size();
}

void Snapshot::CopyBehind(const StepIdentity& identity, std::vector<Base> bases) {
  Begin(identity, std::move(bases), true);
  if (device_) begun_ = BeginOnDevice();
  const auto copy = [this](bool beside) {
    if (beside) BecomeBackgroundThread();
    if (!device_) plan_.Bind(identity_);
    {
      const std::lock_guard lock(mutex_);
      bound_ = true;
    }
    changed_.notify_all();
    CopyChunks();
    if (device_) AwaitDevice();
  };
  try {
    copier_ = std::thread(copy, true);
  } catch (const std::system_error&) {  // no thread can be started: the trainer waits for this copy
    copy(false);
  }
}

std::vector<size_t> Snapshot::PiecesOnDevice() const {
  std::vector<size_t> pieces;
  for (size_t i = 0; i < plan_.piece_count(); ++i)
    if (OnDevice(i)) pieces.push_back(i);
  std::ranges::sort(pieces, {}, [this](size_t i) { return plan_.OffsetOf(i); });
  return pieces;
}

Status Snapshot::BeginOnDevice() {
  plan_.Bind(identity_);
  std::vector<SnapshotPiece> pieces;
  for (size_t i : PiecesOnDevice())
    pieces.push_back({bases_[sources_[i].part].data + sources_[i].offset, plan_.piece(i).stored_bytes,
                      plan_.OffsetOf(i), plan_.ChunkSeed(i, 0)});
  return device_->Begin(std::move(pieces));
}

// The copier's last act: no part of the image counts before the device's part is complete.
void Snapshot::AwaitDevice() {
  Status status = begun_;
  if (status.ok()) {
    const Result<SnapshotDigests> digests = device_->Wait();
    status = digests.status();
    const std::vector<size_t> pieces = PiecesOnDevice();
    for (size_t i = 0; status.ok() && i < pieces.size(); ++i)
      for (size_t chunk = 0; chunk < (*digests)[i].size(); ++chunk)
        plan_.SetDigest(pieces[i], chunk, (*digests)[i][chunk]);
  }
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
    copied_ = chunks_.size();
  }
  changed_.notify_all();
}

// Both threads copy what is left on the host; a device's streams wait for each other.
void Snapshot::Complete() {
  if (!copier_.joinable()) return;
  if (device_ && begun_.ok()) (void)device_->FenceSources();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return bound_; });
  }
  CopyChunks();
  if (!device_) return copier_.join();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return on_host_ == 0; });
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
    if (OnDevice(chunks_[chunk].piece)) continue;
    CopyChunk(chunks_[chunk], hasher);
    MarkCopied(chunk);
  }
}

void Snapshot::CopyChunk(const Chunk& chunk, Hasher& hasher) {
  hasher.Reset(plan_.ChunkSeed(chunk.piece, chunk.index));
  for (uint64_t done = 0; done < chunk.bytes;) {
    const uint64_t count = std::min(kInCacheBytes, chunk.bytes - done);
    std::byte* to = image().data() + chunk.begin + done;
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
    --on_host_;
    while (copied_ < chunks_.size() && is_copied_[copied_]) ++copied_;
  }
  changed_.notify_all();
}

Status Snapshot::WaitFor(uint64_t image_end) {
  if (!behind_) return OkStatus();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return copied_ == chunks_.size() || chunks_[copied_].begin >= image_end; });
  return status_;
}

}  // namespace cairn
