// libcairn_cuda.so: DeviceSnapshot on a GPU. See device_snapshot.h for what it promises.
//
// Two streams: one for the kernels, one for the copies to the host, so slot n + 1 is packed while slot n is
// copied. The link is the slow part and is kept busy: the copy of n + 1 is enqueued before that of n ends. A
// thread of each snapshot enqueues, because CUDA lets only about a thousand operations wait before it blocks
// the caller; the trainer's thread never meets that. Nothing but the windows is ever copied to the host: the
// kernels store digests into pinned memory, where a copy would queue up behind the slot in flight.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <system_error>

#include "runtime/snapshot/cuda/cuda_handle.h"
#include "runtime/snapshot/cuda/snapshot_kernels.h"
#include "runtime/snapshot/snapshot_window.h"

namespace cairn {
namespace {

constexpr uint64_t kAll = ~uint64_t{0};

// For threads that wait for the value.
template <typename T>
void Tell(std::atomic<T>& value, T now) {
  value = now;
  value.notify_all();
}

class CudaSnapshot final : public DeviceSnapshot {
 public:
  static Status New(const CudaSnapshotOptions& options, std::unique_ptr<DeviceSnapshot>& out);
  ~CudaSnapshot() override;

  Status SetArena(std::span<std::byte> arena) override;
  Status Begin(std::vector<SnapshotPiece> pieces) override;
  Status FenceSources() override;
  void WaitFor(uint64_t arena_end) override;
  Result<SnapshotDigests> Wait() override;

 private:
  struct Slot {
    SnapshotWindow window;  // in flight while it has chunks
    PinnedMemory<SnapshotChunk> host_chunks;
    PinnedMemory<uint32_t> host_chunk_of_page;
    DeviceMemory<SnapshotChunk> chunks;
    DeviceMemory<uint32_t> chunk_of_page;
    DeviceMemory<std::byte> staging;
    PinnedMemory<uint64_t> digests;  // written by the GPU
    CudaEvent digested, copied;
  };

  explicit CudaSnapshot(const CudaSnapshotOptions& options) : options_(options), slots_(options.slots) {}
  Status Allocate();
  Status AllocateSlot(Slot& slot);
  cudaStream_t compute() const { return static_cast<cudaStream_t>(options_.compute_stream); }

  Result<SnapshotDigests> Run();
  Status Stream(SnapshotDigests& digests);
  Status Enqueue(Slot& slot);
  Status Collect(Slot& slot, SnapshotDigests& digests);

  const CudaSnapshotOptions options_;
  std::span<std::byte> arena_;
  Registration registration_;
  CudaStream kernels_, copies_;
  CudaEvent sources_ready_;  // on the compute stream
  CudaEvent packed_;         // the newest window; what was enqueued before it has been read then too
  std::vector<Slot> slots_;
  DeviceMemory<uint64_t> sums_;  // of the slot that the kernels work on: one stream, one slot at a time

  std::vector<SnapshotPiece> pieces_;
  std::atomic<bool> reads_enqueued_ = true;  // false while the thread still has windows to enqueue
  std::atomic<uint64_t> copied_ = kAll;      // the arena holds the pieces' bytes before this offset
  std::future<Result<SnapshotDigests>> run_;
};

Status CudaSnapshot::New(const CudaSnapshotOptions& options, std::unique_ptr<DeviceSnapshot>& out) {
  if (options.slot_bytes < kChunkBytes || options.slot_bytes % kSnapshotPageBytes != 0 || options.slots < 2)
    return InvalidArgument("snapshot: {} slots of {} bytes; at least 2 of at least {}, a multiple of {}",
                           options.slots, options.slot_bytes, kChunkBytes, kSnapshotPageBytes);
  int devices = 0;
  CAIRN_RETURN_IF_CUDA_ERROR(cudaGetDeviceCount(&devices));
  if (options.device < 0 || options.device >= devices)
    return NotSupported("device cuda:{}: this host has {} usable; see nvidia-smi", options.device, devices);
  std::unique_ptr<CudaSnapshot> snapshot(new CudaSnapshot(options));
  CAIRN_RETURN_IF_ERROR(snapshot->Allocate());
  out = std::move(snapshot);
  return OkStatus();
}

CudaSnapshot::~CudaSnapshot() {
  if (run_.valid()) run_.wait();
}

Status CudaSnapshot::Allocate() {
  CAIRN_RETURN_IF_CUDA_ERROR(cudaSetDevice(options_.device));
  int least = 0, greatest = 0;
  CAIRN_RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  // First in line: a short kernel that waits behind a long one would leave the link idle.
  CAIRN_RETURN_IF_ERROR(MakeStream(greatest, kernels_));
  CAIRN_RETURN_IF_ERROR(MakeStream(greatest, copies_));
  CAIRN_RETURN_IF_ERROR(MakeEvent(sources_ready_));
  CAIRN_RETURN_IF_ERROR(MakeEvent(packed_));
  CAIRN_RETURN_IF_ERROR(MakeDeviceMemory(options_.slot_bytes / xxh3::kBlockBytes * xxh3::kLanes, sums_));
  for (Slot& slot : slots_) CAIRN_RETURN_IF_ERROR(AllocateSlot(slot));
  return OkStatus();
}

Status CudaSnapshot::AllocateSlot(Slot& slot) {
  const uint64_t pages = options_.slot_bytes / kSnapshotPageBytes;  // and this many chunks, if all are small
  CAIRN_RETURN_IF_ERROR(MakePinnedMemory(pages, slot.host_chunks));
  CAIRN_RETURN_IF_ERROR(MakePinnedMemory(pages, slot.host_chunk_of_page));
  CAIRN_RETURN_IF_ERROR(MakeDeviceMemory(pages, slot.chunks));
  CAIRN_RETURN_IF_ERROR(MakeDeviceMemory(pages, slot.chunk_of_page));
  CAIRN_RETURN_IF_ERROR(MakeDeviceMemory(options_.slot_bytes, slot.staging));
  CAIRN_RETURN_IF_ERROR(MakePinnedMemory(2 * pages, slot.digests));
  CAIRN_RETURN_IF_ERROR(MakeEvent(slot.digested));
  return MakeEvent(slot.copied);
}

Status CudaSnapshot::SetArena(std::span<std::byte> arena) {
  if (run_.valid())
    return InvalidArgument("snapshot: a snapshot is in progress; wait for it before the arena changes");
  registration_.reset();
  arena_ = {};
  if (arena.empty()) return OkStatus();
  CAIRN_RETURN_IF_CUDA_ERROR(cudaSetDevice(options_.device));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaHostRegister(arena.data(), arena.size(), cudaHostRegisterDefault));
  registration_.reset(arena.data());
  arena_ = arena;
  return OkStatus();
}

Status CudaSnapshot::Begin(std::vector<SnapshotPiece> pieces) {
  if (run_.valid()) return InvalidArgument("snapshot: nothing waited for the previous one");
  CAIRN_RETURN_IF_ERROR(CheckPieces(pieces, arena_.size()));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaSetDevice(options_.device));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaEventRecord(sources_ready_.get(), compute()));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(kernels_.get(), sources_ready_.get(), 0));
  pieces_ = std::move(pieces);
  reads_enqueued_ = false;
  copied_ = 0;
  try {
    run_ = std::async(std::launch::async, [this] { return Run(); });
  } catch (const std::system_error& error) {
    return IoError("snapshot: cannot start a thread: {}", error.what());
  }
  return OkStatus();
}

Status CudaSnapshot::FenceSources() {
  reads_enqueued_.wait(false);
  CAIRN_RETURN_IF_CUDA_ERROR(cudaSetDevice(options_.device));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(compute(), packed_.get(), 0));
  return OkStatus();
}

void CudaSnapshot::WaitFor(uint64_t arena_end) {
  for (uint64_t copied = copied_; copied < arena_end; copied = copied_) copied_.wait(copied);
}

Result<SnapshotDigests> CudaSnapshot::Wait() {
  if (!run_.valid()) return InvalidArgument("snapshot: none was started");
  return run_.get();
}

Result<SnapshotDigests> CudaSnapshot::Run() {
  SnapshotDigests digests(pieces_.size());
  Status status = Stream(digests);
  Tell(reads_enqueued_, true);  // also after an error, or the trainer would wait for ever
  for (Slot& slot : slots_)
    if (status.ok()) status = Collect(slot, digests);
  if (!status.ok()) {  // what is still in flight writes into memory that the next snapshot uses
    (void)cudaStreamSynchronize(kernels_.get());
    (void)cudaStreamSynchronize(copies_.get());
    for (Slot& slot : slots_) slot.window = {};
  }
  Tell(copied_, kAll);
  if (status.ok()) return digests;
  return status.WithContext("snapshot from the GPU");
}

// Enqueues all windows, each as soon as its slot is free.
Status CudaSnapshot::Stream(SnapshotDigests& digests) {
  CAIRN_RETURN_IF_CUDA_ERROR(cudaSetDevice(options_.device));
  WindowCutter cutter(pieces_, options_.slot_bytes);
  while (!cutter.done()) {
    CAIRN_RETURN_IF_ERROR(Collect(slots_.front(), digests));
    slots_.front().window = cutter.Next();
    CAIRN_RETURN_IF_ERROR(Enqueue(slots_.front()));
    std::rotate(slots_.begin(), slots_.begin() + 1, slots_.end());  // the oldest window first
  }
  return OkStatus();
}

Status CudaSnapshot::Enqueue(Slot& slot) {
  const SnapshotWindow& window = slot.window;
  const size_t chunk_bytes = window.chunks.size() * sizeof(SnapshotChunk);
  const size_t page_bytes = window.chunk_of_page.size() * sizeof(uint32_t);
  std::memcpy(slot.host_chunks.get(), window.chunks.data(), chunk_bytes);
  std::memcpy(slot.host_chunk_of_page.get(), window.chunk_of_page.data(), page_bytes);
  CAIRN_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(slot.chunks.get(), slot.host_chunks.get(), chunk_bytes,
                                             cudaMemcpyHostToDevice, kernels_.get()));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(slot.chunk_of_page.get(), slot.host_chunk_of_page.get(),
                                             page_bytes, cudaMemcpyHostToDevice, kernels_.get()));
  const SlotView view{.chunks = slot.chunks.get(),
                      .chunk_of_page = slot.chunk_of_page.get(),
                      .chunk_count = window.chunks.size(),
                      .bytes = window.bytes(),
                      .staging = slot.staging.get(),
                      .sums = sums_.get(),
                      .digests = slot.digests.get()};
  CAIRN_RETURN_IF_CUDA_ERROR(LaunchPack(view, kernels_.get()));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaEventRecord(packed_.get(), kernels_.get()));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(copies_.get(), packed_.get(), 0));
  for (const SnapshotWindow::Run& run : window.runs)
    CAIRN_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(arena_.data() + run.arena_offset,
                                               slot.staging.get() + run.staged, run.bytes,
                                               cudaMemcpyDeviceToHost, copies_.get()));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaEventRecord(slot.copied.get(), copies_.get()));
  CAIRN_RETURN_IF_CUDA_ERROR(LaunchChain(view, kernels_.get()));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaEventRecord(slot.digested.get(), kernels_.get()));
  return OkStatus();
}

// Waits for the slot's window, if it has one, takes its digests and frees the slot.
Status CudaSnapshot::Collect(Slot& slot, SnapshotDigests& digests) {
  if (slot.window.chunks.empty()) return OkStatus();
  CAIRN_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(slot.copied.get()));
  CAIRN_RETURN_IF_CUDA_ERROR(cudaEventSynchronize(slot.digested.get()));
  AppendDigests(slot.window, pieces_, slot.digests.get(), arena_.data(), digests);
  Tell(copied_, slot.window.runs.back().arena_offset + slot.window.runs.back().bytes);
  slot.window = {};
  return OkStatus();
}

}  // namespace
}  // namespace cairn

// A snapshot that the caller owns, or why there is none.
extern "C" void CairnNewCudaSnapshot(const cairn::CudaSnapshotOptions& options, cairn::Status* status,
                                     cairn::DeviceSnapshot** snapshot) {
  std::unique_ptr<cairn::DeviceSnapshot> made;
  *status = cairn::CudaSnapshot::New(options, made);
  *snapshot = made.release();
}
