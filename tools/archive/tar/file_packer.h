// Packs one file (packed_file.h) with several threads while it is read.
#pragma once

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "ckpt/base/worker_pool.h"
#include "ckpt/model/manifest.h"
#include "tools/archive/tar/packed_file.h"

namespace cairn {

struct StepCatalog;

// A part of a file with one element type.
struct PackSegment {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint8_t element_bytes = 1;
  std::string weight_file;     // of an fp32 master: the file with its bf16 weights; empty: none
  uint64_t weight_offset = 0;  // of those of the element at `begin`
};

// The parts of a step's file, by its catalog: all of it, in order. Small ones are merged.
std::vector<PackSegment> SegmentsOf(const StepCatalog& catalog, const ManifestFile& file);
// For a file of unknown content.
std::vector<PackSegment> UnknownSegments(uint64_t bytes);

// Threads that encode chunks, for one file after the other.
class PackPool {
 public:
  explicit PackPool(int threads);
  ~PackPool();
  PackPool(const PackPool&) = delete;
  PackPool& operator=(const PackPool&) = delete;

  // One chunk in flight. `input` is filled by the packer, the rest by a thread.
  struct Job {
    std::vector<std::byte> input;
    uint8_t element_bytes = 1;
    bool sniff = false;                                           // the element type is unknown
    std::function<Status(std::span<std::byte> weights)> weights;  // reads the bf16 weights; empty: none
    uint32_t weight_name = 0;
    uint64_t weight_offset = 0;
    // Result.
    std::vector<std::byte> stored;
    PackedFrame frame;
    std::vector<MasterException> exceptions;
  };
  // Ready once the result is available; `job` must stay alive until then.
  std::future<void> Submit(Job& job);
  size_t workers() const { return pool_.workers(); }

 private:
  struct Encoder;  // what a thread keeps

  std::vector<Encoder> encoders_;
  WorkerPool pool_;  // last: it uses them
};

class FilePacker {
 public:
  using Emit = std::function<Status(std::span<const std::byte>)>;
  // Reads weights of the step's other files.
  using WeightReader =
      std::function<Status(const std::string& file, uint64_t offset, std::span<std::byte> out)>;

  FilePacker(PackPool& pool, std::vector<PackSegment> segments, WeightReader weights, Emit emit);
  ~FilePacker();  // waits for its chunks

  // The next bytes of the file.
  Status Append(std::span<const std::byte> bytes);
  // The last frames and the table.
  Status Finish();

 private:
  void StartJob();
  Status EmitFront();

  PackPool& pool_;
  const std::vector<PackSegment> segments_;
  const WeightReader weights_;
  const Emit emit_;
  size_t segment_ = 0;  // that the next byte belongs to
  uint64_t at_ = 0;     // in the file
  std::unique_ptr<PackPool::Job> current_;
  uint64_t current_bytes_ = 0;  // of the whole file
  struct Running {
    std::unique_ptr<PackPool::Job> job;
    std::future<void> done;
  };
  std::deque<Running> running_;
  std::vector<std::unique_ptr<PackPool::Job>> idle_;
  PackedTable table_;
};

// The largest size of the packed file.
uint64_t PackedBytesAtMost(const std::vector<PackSegment>& segments);

}  // namespace cairn
