// The small checkpoints that the fault tests save, and how they are checked afterwards.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/run/run_dir.h"
#include "tests/support/make_step.h"

namespace cairn {

// A handful of tensors in two layers, cut across tensor, pipeline and data parallel ranks.
StepRecipe SmallRecipe(const Topology& topology, int64_t step, uint64_t seed);

// The expected content of a step: the same for equal run, step and values, on any topology.
struct Content {
  int64_t step = 0;
  Digest values{};
  bool operator==(const Content&) const = default;
};
Content ContentOf(const StepRecipe& recipe);

// Reads every tensor, verified. Errors: those of StepReader.
Result<Content> ReadTensors(StepReader& step);

// Reads all of a step, like a resume on any topology and `cairn verify`: every byte of every file against
// its digest, every tensor. Errors: those of StepReader; Corrupt with the first problem.
Result<Content> ReadWhole(FileSystem& fs, const std::string& step_dir);

// The step from which a training in `run_dir` would start: the newest readable one, walking back past others,
// which `damaged` names. nullopt if there is none.
std::optional<Content> Resume(FileSystem& fs, const std::string& run_dir,
                              std::vector<std::string>* damaged = nullptr);

}  // namespace cairn
