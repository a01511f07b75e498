// Writes one shard compressed: chunks are encoded by a few threads and written one after another as a single
// stream of large aligned writes; HDF5's structure is laid out around them at the end.
//
// Each chunk is encoded if that pays (plane_codec.h), and chunks are stored in the order in which they come:
// the same calls give the same file for any number of threads. FORMAT.md, "Shards".
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/worker_pool.h"
#include "ckpt/io/write_ring.h"
#include "ckpt/step/shard_plan.h"

namespace cairn {

struct PackOptions {
  Direct direct = Direct::kAuto;
  int threads = 2;     // that encode
  bool encode = true;  // false: chunks are stored as they are
};

class PackedShardWriter {
 public:
  // Creates `directory`/contents.name() and reserves what it takes uncompressed.
  static Result<std::unique_ptr<PackedShardWriter>> Create(FileSystem& fs, WriteRing& ring,
                                                           const std::string& directory,
                                                           ShardContents contents,
                                                           const PackOptions& options = {});
  ~PackedShardWriter();
  PackedShardWriter(const PackedShardWriter&) = delete;
  PackedShardWriter& operator=(const PackedShardWriter&) = delete;

  // The next chunks of piece `piece`, in row-major order: whole ones, or all that is left of the piece. They
  // stay as they are until Finish(). Errors: InvalidArgument for other bytes; an earlier write's.
  Status Append(size_t piece, std::span<const std::byte> bytes);

  // A whole fp32 master, given with its bf16 weight of the same elements; both stay until Finish(). Stores
  // only the low halves if the weight gives the rest (split_master.h), else the whole master.
  Status AppendSplit(size_t master, std::span<const std::byte> weight, std::span<const std::byte> bytes);

  // A whole fp16 weight, given with its fp32 master of the same elements; it stays until Finish(). Stores
  // nothing if the master gives it (derived_weight.h), else the whole weight.
  Status AppendDerived(size_t weight, std::span<const std::byte> master, std::span<const std::byte> bytes);

  // Writes the rest of the file, syncs and closes it. Errors: InvalidArgument if a piece is incomplete;
  // those of the disk and of HDF5. After an error the file is condemned: remove the whole partial directory.
  Result<ShardReceipt> Finish();

 private:
  struct Job {
    uint64_t number = 0;  // place in the stream
    size_t piece = 0;
    uint64_t chunk = 0;
    std::span<const std::byte> bytes;
    std::span<const std::byte> weight;        // not empty: the low halves of `bytes` are stored
    std::vector<MasterException> exceptions;  // found while the low halves were taken
  };

  struct Worker;  // what a thread keeps

  PackedShardWriter(WriteRing& ring, ShardContents contents, const PackOptions& options);
  void Enqueue(Job job);
  void Encode(Job& job, Worker& worker);
  void Place(const Job& job, StoredChunk place, std::span<const std::byte> stored);
  Result<H5Layout> LayOut(uint64_t catalog_offset, uint64_t catalog_bytes);

  WriteRing& ring_;
  ShardContents contents_;
  const bool encode_;
  std::unique_ptr<File> file_;
  std::vector<uint64_t> appended_;  // bytes of each piece
  uint64_t next_number_ = 0;

  std::mutex mutex_;  // all below
  std::condition_variable placed_;
  uint64_t nonfinite_ = 0;               // values so far
  uint64_t next_placed_ = 0;             // the job whose turn it is to be written
  std::optional<SequentialWriter> out_;  // of the stream of chunks
  std::vector<Worker> workers_;
  WorkerPool pool_;  // last: it uses the others
};

struct PackImageOptions {
  PackOptions pack;
  WriteRingOptions ring;
  bool split_master = false;  // AppendSplit() and AppendDerived() if weight and master are both in the image
  // See ImageWriteOptions.
  std::function<void(uint64_t end)> wait_for;
};

// The compressed twin of WriteShardImage: the pieces of `plan`, which are in `image` at its offsets.
Result<ShardReceipt> WritePackedImage(FileSystem& fs, const std::string& directory, const ShardPlan& plan,
                                      std::span<const std::byte> image, const PackImageOptions& options = {});

}  // namespace cairn
