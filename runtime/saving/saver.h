// Makes snapshots durable, one after the other, beside the training.
//
// Every rank's thread writes its shard (or copies it from where a local step has it) and sends its receipt to
// rank 0, which seals and publishes the step and reports to all. Older steps are retired only after
// every rank has read its part of the new one back. All ranks hand over the same saves in the same order.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "ckpt/base/worker_pool.h"
#include "ckpt/run/committer.h"
#include "ckpt/run/tokenizer_files.h"
#include "runtime/control/control_plane.h"
#include "runtime/control/said_once.h"
#include "runtime/saving/save_codec.h"
#include "runtime/snapshot/snapshot.h"

namespace cairn {

struct SaverOptions {
  std::string save_dir;           // run directory
  const RunLock* lock = nullptr;  // of rank 0, which holds the run directory
  RetentionPolicy retention;
  Direct direct = Direct::kAuto;
  CodecMode codec = CodecMode::kNone;
  int codec_threads = 2;                // of each rank, that compress
  bool split_master = false;            // of a weight and its master, store what the other does not say
  std::vector<BesideFile> beside = {};  // of rank 0: the tokenizer, which each step gets a copy of
};

// One save on its way. The saver's until Finish().
struct Save {
  using Clock = std::chrono::steady_clock;

  // By the saver: `outcome` is known, the snapshot's memory free.
  void Finish(Status outcome);
  void Wait() const { done.wait(false); }

  StepInfo info;
  std::string nonce;
  std::shared_ptr<const std::vector<TensorEntry>> tensors;  // of the model, without random states
  Snapshot* snapshot = nullptr;
  bool durable = true;     // is to go to the run directory, not only to a local one
  std::string local_step;  // not empty: this rank's shard is a file there, as `receipt` says
  ShardReceipt receipt;
  std::shared_ptr<Save> drain;  // continues from the local step that this save has become
  Clock::time_point started;
  double stall_seconds = 0;  // the trainer's, and its thread's alone
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
// What ranks tell rank 0 of their shards: receipts, or why there is none, and how long it took.
struct WrittenShards {
  std::vector<TensorEntry> tensors;  // of the model, and all random states
  std::vector<ShardReceipt> receipts;
  std::vector<double> seconds;
};
// What the manifest is to say, with the values that all ranks found not to be finite.
StepInfo InfoOf(const Save& save, const WrittenShards& written);
std::string EncodeWritten(const Save& save, const Result<ShardReceipt>& receipt);
// Blobs by rank. Errors: that of a rank, named.
Result<WrittenShards> DecodeWritten(const Save& save, const std::vector<std::string>& blobs);

// Does `flush` on the thread of a queue, beside the training.
void FlushBehind(WorkerPool& queue, std::function<void()> flush);

class Saver {
 public:
  Saver(SaverOptions options, std::unique_ptr<ControlPlane> control);

  void Start(std::shared_ptr<Save> save) {
    FlushBehind(queue_, [this, save] { save->Finish(Flush(*save)); });
  }
  // Whether local steps can be copied on as they are; else saves are compressed from their snapshots.
  bool copies_local_steps() const { return options_.codec == CodecMode::kNone && !options_.split_master; }

 private:
  Committer CommitterOf(const Save& save) const;
  Status Flush(Save& save);
  Result<ShardReceipt> WriteShard(const Save& save);
  Result<ShardReceipt> WritePacked(const std::string& directory, const Save& save, bool compress);
  Status CommitAtRoot(const Save& save, const Result<std::vector<std::string>>& blobs);
  void NameSlowRank(const Save& save, const std::vector<double>& seconds) const;
  void Retire(const Save& save, bool read);
  bool ReadsBack(const Save& save, const ShardReceipt& receipt) const;

  const SaverOptions options_;
  const std::unique_ptr<ControlPlane> control_;
  FileSystem& fs_ = FileSystem::Posix();
  SaveCodec codec_;
  SaidOnce leftovers_{"old step not removed: "};
  H5Views views_;                    // of rank 0's seals
  WorkerPool queue_{/*threads=*/1};  // last: it ends first, and finishes what it was given
};

}  // namespace cairn
