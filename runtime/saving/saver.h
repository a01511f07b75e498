// Makes snapshots durable, one after the other, in parallel with the training.
//
// Every rank's thread writes its shard, or copies it from a local step; the ranks then commit the step
// together (ckpt/job/job_save.h). All ranks hand over the same saves in the same order.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "ckpt/base/worker_pool.h"
#include "ckpt/job/job_save.h"
#include "ckpt/run/run_dir.h"
#include "ckpt/run/tokenizer_files.h"
#include "runtime/control/control_plane.h"
#include "runtime/control/said_once.h"
#include "runtime/saving/checkpointer_options.h"
#include "runtime/saving/save_codec.h"
#include "runtime/snapshot/snapshot.h"

namespace cairn {

// One save in progress. Belongs to the saver until Finish().
struct Save {
  using Clock = std::chrono::steady_clock;

  // Called by the saver: the outcome is known, and the snapshot's memory is free.
  void Finish(Status outcome);
  void Wait() const { done.wait(false); }

  StepInfo info;
  std::string nonce;
  std::shared_ptr<const std::vector<TensorEntry>> tensors;  // of the model, without random states
  Snapshot* snapshot = nullptr;
  bool copies_may_differ = false;
  bool durable = true;     // goes to the run directory, not only to a local one
  std::string local_step;  // not empty: this rank's shard is a file there, described by `receipt`
  ShardReceipt receipt;
  std::shared_ptr<Save> drain;  // copies the local step of this save
  Clock::time_point started;
  double stall_seconds = 0;                // of the trainer; only its thread uses this
  std::shared_future<std::string> copies;  // CopySums of its state; without: nothing is compared
  std::string alarm;                       // that copies differ; on rank 0
  std::atomic<bool> done = false;
  double written_seconds = 0;  // this rank's shard, from the start
  double durable_seconds = 0;  // the step, from the start
  Status status;
};

inline double SecondsSince(Save::Clock::time_point start) {
  return std::chrono::duration<double>(Save::Clock::now() - start).count();
}

// Writes the snapshot of a save as this rank's shard into a directory.
Result<ShardReceipt> WriteSnapshot(FileSystem& fs, const std::string& directory, const Save& save,
                                   Direct direct);
// This rank's part of the step: its shard, and how long that took.
Result<SavePart> PartOf(const Save& save, const Result<ShardReceipt>& receipt);
// The seal of all parts, which adds their random states, and the count of non-finite values of all ranks.
// Reports a rank that took much longer than the others. `views`: of rank 0's seals. Errors: Aborted if copies
// differ (copies.h), unless the save is made nevertheless.
Result<StepSeal> SealOf(Save& save, const std::vector<SavePart>& parts, H5Views& views);

// Runs `flush` on a queue's thread, in parallel with the training.
void FlushInBackground(WorkerPool& queue, std::function<void()> flush);

class Saver {
 public:
  // `options` must outlive the saver. On rank 0 `lock` holds the run directory, and each step gets a copy of
  // `beside`: the tokenizer.
  Saver(const CheckpointerOptions& options, const RunLock* lock, std::vector<BesideFile> beside,
        std::unique_ptr<ControlPlane> control);

  void Start(std::shared_ptr<Save> save) {
    FlushInBackground(queue_, [this, save] { save->Finish(Flush(*save)); });
  }
  // True if local steps can be copied as they are; else saves are compressed from their snapshots.
  bool copies_local_steps() const { return config_.save_codec == "none" && !config_.split_master; }

 private:
  Status Flush(Save& save);
  Result<ShardReceipt> WriteShard(const Save& save, const std::string& directory);
  Result<ShardReceipt> WritePacked(const std::string& directory, const Save& save, bool compress);

  const TrainConfig& config_;
  const Direct direct_;
  const RunLock* const lock_;
  const std::vector<BesideFile> beside_;
  const std::unique_ptr<ControlPlane> control_;
  RankSaveMessages messages_{*control_};
  FileSystem& fs_;
  const RetentionPolicy retention_;
  SaveCodec codec_;
  SaidOnce leftovers_{"old step not removed: "};
  H5Views views_;                    // of rank 0's seals
  WorkerPool queue_{/*threads=*/1};  // last: it ends first, and finishes what it was given
};

}  // namespace cairn
