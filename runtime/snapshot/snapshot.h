// A copy of live state, laid out as the file of this rank's shard (ckpt/step/shard_image.h).
//
// The memory is reserved and touched once and used for every save. Two ways to fill it:
// - at once: the caller copies, and continues when the copy is complete;
// - behind: a thread copies chunk by chunk, taking each chunk's digest while it is in cache, during the next
// forward and backward, which do not change weights and moments. Before the optimizer changes them the
//   trainer calls Complete(), which helps with what is left.
// State on a GPU is copied by a DeviceSnapshot (device_snapshot.h), which digests it there. For a copy
// behind, the trainer then only fences its stream, and helps with state on the host (offloaded states).
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/base/mapping.h"
#include "ckpt/step/shard_plan.h"
#include "runtime/snapshot/device_snapshot.h"

namespace cairn {

class Snapshot {
 public:
  // Where the bytes of a piece lie in live memory: bases[part] + offset.
  struct Source {
    size_t part = 0;
    uint64_t offset = 0;
  };
  // Device memory to host.
  using DeviceCopy = std::function<void(void* to, const void* from, size_t bytes)>;
  struct Base {
    const std::byte* data = nullptr;
    bool on_gpu = false;
  };

  // `sources`: one a piece of the plan, as given to it. `device`: for what is on a GPU; if there is none,
  // `copy` is used. Errors: NoSpace if there is not enough memory.
  static Result<std::unique_ptr<Snapshot>> Make(ShardPlan plan, std::vector<Source> sources, DeviceCopy copy,
                                                std::unique_ptr<DeviceSnapshot> device = nullptr);
  ~Snapshot();

  // For one save at a time: `bases` must stay as they are until the copy is complete.
  void CopyNow(const StepIdentity& identity, std::vector<Base> bases);
  void CopyBehind(const StepIdentity& identity, std::vector<Base> bases);
  // Returns when the trainer may change what `bases` point to; the caller's thread takes part in the copy.
  void Complete();
  // Returns when the pieces' bytes before this offset of the image are complete. Errors: the GPU's.
  Status WaitFor(uint64_t image_end);

  ShardPlan& plan() { return plan_; }
  std::span<std::byte> image() { return arena_.bytes(); }
  // True if the digests come with the copy.
  bool takes_digests() const { return behind_; }

 private:
  struct Chunk {  // in order of its place in the image
    size_t piece;
    uint64_t index;
    uint64_t begin;  // of the image
    uint64_t bytes;
  };

  Snapshot(ShardPlan plan, std::vector<Source> sources, DeviceCopy copy,
           std::unique_ptr<DeviceSnapshot> device);
  bool OnDevice(size_t piece) const { return device_ && bases_[sources_[piece].part].on_gpu; }
  std::vector<size_t> PiecesOnDevice() const;  // in order of place
  Status BeginOnDevice();
  void AwaitDevice();
  void Begin(const StepIdentity& identity, std::vector<Base> bases, bool behind);
  void CopyChunks();
  void CopyChunk(const Chunk& chunk, Hasher& hasher);
  void CopyBytes(const Source& source, uint64_t offset, std::byte* to, uint64_t bytes) const;
  void MarkCopied(size_t chunk);

  ShardPlan plan_;
  const std::vector<Source> sources_;
  const DeviceCopy device_copy_;
  Mapping arena_;  // all pages present: fresh ones were measured at a tenth of memcpy
  const std::unique_ptr<DeviceSnapshot> device_;  // after the arena, which it has pinned
  std::vector<Chunk> chunks_;

  // The save under way.
  std::vector<Base> bases_;
  bool behind_ = false;
  StepIdentity identity_;
  std::thread copier_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool bound_ = false;           // the plan's seeds are those of identity_
  size_t next_ = 0;              // chunk to take
  size_t copied_ = 0;            // all chunks before this one are complete
  std::vector<char> is_copied_;  // by chunk
  int64_t on_host_ = 0;          // chunks on the host that are not copied yet
  Status begun_;                 // on the device
  Status status_;                // of the device's copy
};

}  // namespace cairn
