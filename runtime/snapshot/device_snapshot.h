// Copies training state into a host arena while training continues, and digests it on the way.
//
// On a GPU the copy runs on separate streams, in parallel with kernels that only read the state: a kernel
// packs pieces into a staging slot in the shard's layout and digests them there, the copy engine moves the
// slot into the pinned arena. On a CPU it is memcpy and XXH3. Both leave the same bytes and the same digests.
// This header includes neither CUDA nor libtorch; the code that needs CUDA is libcairn_cuda.so, loaded when a
// GPU is used.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ckpt/base/digest.h"
#include "ckpt/base/status.h"
#include "ckpt/model/piece.h"

namespace cairn {

// Contiguous bytes of state and their place in the arena.
struct SnapshotPiece {
  const std::byte* source = nullptr;  // device memory on a GPU; any alignment
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the arena; a multiple of kPageBytes
  uint64_t seed = 0;    // of the first chunk's digest: PieceSeed() of ckpt/base/digest.h
};

// The digests of the chunks of each piece, as Piece::chunks of ckpt/model/catalog.h has them.
using SnapshotDigests = std::vector<std::vector<Digest>>;

// One snapshot at a time: the trainer calls Begin, and FenceSources before the state changes; the same thread
// or another then WaitFor, as often as it likes, and Wait.
class DeviceSnapshot {
 public:
  virtual ~DeviceSnapshot() = default;

  // Sets the memory that snapshots go to. Stays registered with the driver, so call it again, with nothing if
  // need be, before the memory is unmapped. Errors: NoSpace or IoError if it cannot be pinned; then there is
  // no arena.
  virtual Status SetArena(std::span<std::byte> arena) = 0;

  // Begins to copy `pieces`, which come in ascending order of offset and do not share a page of the arena.
  // After a piece, the rest of its last page becomes zero; bytes of the arena between pieces are not changed.
  // On a GPU the sources are read after the work already enqueued on the compute stream, and the call does
  // not wait. Errors: InvalidArgument naming the piece, or if nothing waited for the previous snapshot.
  virtual Status Begin(std::vector<SnapshotPiece> pieces) = 0;

  // Call it before giving the compute stream work that changes the sources: that work then runs after they
  // were read. On a GPU the caller waits only while reads are still to be enqueued. No error of the snapshot
  // shows here.
  virtual Status FenceSources() = 0;

  // Returns when the pieces' bytes before this offset of the arena are complete, or the snapshot has failed,
  // which Wait() reports.
  virtual void WaitFor(uint64_t arena_end) = 0;

  // Waits until the arena holds all pieces; once a Begin. After an error what the arena holds is undefined,
  // and nothing writes to it any more; the next Begin starts afresh.
  virtual Result<SnapshotDigests> Wait() = 0;
};

struct CudaSnapshotOptions {
  int device = 0;
  void* compute_stream = nullptr;     // a cudaStream_t; null: the default stream, libtorch's too
  uint64_t slot_bytes = 64ull << 20;  // of device memory a slot, at least kChunkBytes
  int slots = 2;                      // one is packed while another is copied
};

// Loads libcairn_cuda.so from the directory of the program and allocates the slots: slots * slot_bytes * 1.01
// and a sixteenth of a slot. Errors: NotSupported if the module was not built or no GPU is usable;
// NoSpace.
Result<std::unique_ptr<DeviceSnapshot>> NewCudaSnapshot(const CudaSnapshotOptions& options = {});

}  // namespace cairn
