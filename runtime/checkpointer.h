// Saves a training's state as steps of a run directory, and resumes from the newest good one on any topology.
//
// A save stops the trainer for one memory copy: what this rank writes (placement.h) is copied into an arena
// that is kept and touched beforehand. A thread then writes the shard, gathers the receipts on a control
// plane of its own, and rank 0 commits. A failed save is reported and counted; training goes on and the next
// interval tries again. Libtorch-free: state on a GPU comes through `copy_from_device`.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/commit.h"
#include "ckpt/run_dir.h"
#include "runtime/arena.h"
#include "runtime/checkpoint_hooks.h"
#include "runtime/control_plane.h"

namespace cairn {

struct CheckpointerOptions {
  std::string save_dir;       // run directory; empty: never saves
  std::string load;           // CKPT to start from where save_dir has no step yet; may be empty
  int64_t save_interval = 0;  // steps; 0: only when forced
  RetentionPolicy retention;
  Topology topology;
  nlohmann::json model;  // for the manifest
  Direct direct = Direct::kAuto;
  // Device memory to host and back; used for parts with on_gpu only.
  std::function<void(void* to, const void* from, size_t bytes, bool to_device)> device_copy;
};

class Checkpointer : public CheckpointHooks {
 public:
  // Collective. Rank 0 takes the run directory's lock and removes leftovers of killed saves.
  // Errors: those of the directory, the same on all ranks.
  static Result<std::unique_ptr<Checkpointer>> Create(CheckpointerOptions options,
                                                      std::unique_ptr<ControlPlane> control);
  ~Checkpointer() override;

  Result<std::optional<TrainState>> Resume(StateBuffers& buffers) override;
  Status BeforeOptimizerStep() override { return OkStatus(); }
  Status AfterStep(const TrainState& state, StateBuffers& buffers, bool force) override;
  Status Finish() override;

  int64_t failed_saves() const { return failed_saves_; }

 private:
  struct Pending {  // one save on its way; owned by the saver thread until done
    StepInfo info;
    std::string nonce;
    std::vector<TensorEntry> tensors;  // of the model, without RNG
    std::vector<TensorEntry> local_tensors;
    std::vector<Piece> pieces;
    std::vector<size_t> arena_offsets;  // of each piece
    double copy_seconds = 0;
    std::chrono::steady_clock::time_point started;
    std::atomic<bool> done = false;
    Status status;
  };

  Checkpointer(CheckpointerOptions options, std::unique_ptr<ControlPlane> control);
  Status Open();
  std::string StagingDir(const Pending& save) const;

  Status PlanSave(const TrainState& state, const StateBuffers& buffers, Pending& save);
  void Copy(const StateBuffers& buffers, Pending& save);
  void Flush(Pending& save);
  Result<ShardReceipt> WriteShard(const Pending& save);
  Status CommitAtRoot(const Pending& save, const std::vector<std::string>& blobs);
  Status Collect();  // joins the saver thread, reports how it went

  Result<std::vector<std::string>> Candidates();
  Status LoadStep(const std::string& directory, StateBuffers& buffers, TrainState& state);
  Status LoadParts(StepReader& step, StateBuffers& buffers);
  void LoadRng(StepReader& step, StateBuffers& buffers);

  CheckpointerOptions options_;
  std::unique_ptr<ControlPlane> control_;
  FileSystem& fs_ = FileSystem::Posix();
  std::optional<RunLock> lock_;
  WriteRing ring_;
  Arena arena_;
  std::string run_;
  std::string nonce_;
  int64_t saves_ = 0;
  int64_t failed_saves_ = 0;
  int64_t newest_saved_ = -1;  // iteration of the last save begun
  std::unique_ptr<Pending> pending_;
  std::thread saver_;
};

}  // namespace cairn
