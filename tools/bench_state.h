// The state of a training as the benchmarks save and load it: 14 bytes a parameter in one rank's memory.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "ckpt/commit.h"
#include "ckpt/step_reader.h"

namespace cairn {

// Tensors one behind the other in memory that somebody else owns.
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

// Seconds of one save of a state by one writer, by ckpt's own path.
struct SaveSeconds {
  double plan = 0;    // where each byte will lie
  double copy = 0;    // the state into the arena: what a trainer waits for
  double flush = 0;   // the arena into a durable shard, digests taken
  double commit = 0;  // index, manifest, rename: until the step exists
};

// Commits `state` as RUN/step-00000001. `arena` holds the snapshot; see ArenaBytes.
Result<SaveSeconds> SaveState(const std::string& run_dir, const BenchState& state,
                              std::span<std::byte> arena);
Result<uint64_t> ArenaBytes(const BenchState& state);
std::string SavedStep(const std::string& run_dir);  // the directory that SaveState leaves

Status RemoveRun(const std::string& run_dir);

// Reads every file of the step from its disk and checks every byte. Errors: Corrupt with the first problem.
Status VerifySaved(const std::string& step_dir);

// Opens the step and reads every tensor, verified, into `state.memory`. Seconds in all. Errors: Corrupt where
// it holds other tensors than the state.
Result<double> LoadState(const std::string& step_dir, const BenchState& state);

}  // namespace cairn
