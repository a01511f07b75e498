// Makes snapshots durable, one after the other, beside the training.
//
// Every rank's thread writes its shard and sends its receipt to rank 0, which seals and publishes the step
// and tells all how it went. Older steps are retired only after every rank has read its part of the new one
// back. All ranks hand over the same saves in the same order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ckpt/commit.h"
#include "ckpt/run_dir.h"
#include "runtime/control_plane.h"
#include "runtime/save_codec.h"
#include "runtime/snapshot.h"

namespace cairn {

struct SaverOptions {
  std::string save_dir;  // run directory
  RetentionPolicy retention;
  Direct direct = Direct::kAuto;
  CodecMode codec = CodecMode::kNone;
  int codec_threads = 2;  // of each rank, that compress
};

// One save on its way. The saver's until `done`.
struct Save {
  using Clock = std::chrono::steady_clock;

  StepInfo info;
  std::string nonce;
  std::shared_ptr<const std::vector<TensorEntry>> tensors;  // of the model, without random states
  Snapshot* snapshot = nullptr;
  Clock::time_point started;
  double stall_seconds = 0;  // the trainer's
  std::atomic<bool> done = false;
  double written_seconds = 0;  // this rank's shard, from the start
  double durable_seconds = 0;  // the step, from the start
  Status status;
};

class Saver {
 public:
  Saver(SaverOptions options, std::unique_ptr<ControlPlane> control);
  ~Saver();  // finishes what it was given

  void Start(std::shared_ptr<Save> save);
  void Wait(const Save& save);

 private:
  void Work();
  Status Flush(Save& save);
  Result<ShardReceipt> WriteShard(Save& save);
  Status CommitAtRoot(const Save& save, const std::vector<std::string>& blobs);
  void NameSlowRank(const Save& save, const std::vector<double>& seconds) const;
  void Retire(const Save& save, const ShardReceipt& receipt);
  Status ReadBack(const Save& save, const ShardReceipt& receipt) const;

  const SaverOptions options_;
  const std::unique_ptr<ControlPlane> control_;
  FileSystem& fs_ = FileSystem::Posix();
  SaveCodec codec_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Save>> saves_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cairn
