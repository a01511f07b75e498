// The state of a training as the benchmarks save and load it: 14 bytes a parameter in one rank's memory.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "ckpt/h5/h5_views.h"
#include "ckpt/run/committer.h"
#include "ckpt/step/step_reader.h"
#include "runtime/snapshot/snapshot.h"

namespace cairn {

// Tensors one after another in memory that the caller owns.
struct BenchState {
  std::vector<TensorEntry> tensors;
  std::vector<uint64_t> offsets;  // of each in `memory`
  nlohmann::json model;
  uint64_t tensor_bytes = 0;
  uint64_t memory_bytes = 0;  // with the gaps of alignment, whole pages
  std::span<std::byte> memory;

  std::span<std::byte> bytes_of(size_t tensor) const {
    return memory.subspan(offsets[tensor], tensors[tensor].bytes());
  }
};

// A GPT of about `bytes` in all: bf16 weights, fp32 masters and two fp32 moments. Memory is not set yet.
BenchState GptLikeState(uint64_t bytes);
// The tensors of a step, in its catalog's order. Memory is not set yet.
BenchState StateLike(const StepReader& step);

// Seconds of one save of a state by one writer.
struct SaveSeconds {
  double stall = 0;    // what the trainer waited
  double flush = 0;    // the arena into a durable shard; in lazy mode it waits for the copy and overlaps it
  double commit = 0;   // index, manifest, rename: until the step exists
  double durable = 0;  // from the start until then
};

// Saves a state again and again by the trainer's own path, as one rank would: the snapshot's memory and plan
// are made once, and so are the views of the index.
class StateSaver {
 public:
  static Result<StateSaver> Make(const BenchState& state);

  // Commits the state as RUN/step-00000001. `lazy`: the copy runs while this thread computes something else
  // for ten times as long as a memcpy would take, as under a forward and backward.
  Result<SaveSeconds> Save(const std::string& run_dir, bool lazy);

  // The snapshot's memory; anybody's between saves.
  std::span<std::byte> image() { return snapshot_->image(); }

 private:
  StateSaver(const BenchState& state, std::unique_ptr<Snapshot> snapshot)
      : state_(&state), snapshot_(std::move(snapshot)) {}
  Status Flush(const std::string& run_dir, SaveSeconds& seconds);

  const BenchState* state_;
  std::unique_ptr<Snapshot> snapshot_;
  H5Views views_;
};

std::string SavedStep(const std::string& run_dir);  // the directory that Save leaves
Status RemoveRun(const std::string& run_dir);

// Reads every file of the step from its disk and checks every byte. How many. Errors: Corrupt with the first
// problem.
Result<uint64_t> VerifySaved(const std::string& step_dir);

// Opens the step and reads every tensor, verified, into `state.memory`. Seconds in all. Errors: Corrupt where
// it holds other tensors than the state.
Result<double> LoadState(const std::string& step_dir, const BenchState& state);

}  // namespace cairn
