// The steps of a run directory with a verdict on each, for resume, retention and listings.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/model/manifest.h"
#include "ckpt/run/branch.h"
#include "ckpt/run/health.h"

namespace cairn {

struct StepFacts {
  int64_t step = 0;
  int64_t tokens = 0;
  std::string unhealthy;         // why; empty if it is healthy or unknown
  std::optional<Health> health;  // by its own record
  std::string run;
  int64_t epoch = 0;                      // passes over the training data that are complete
  std::optional<double> validation_loss;  // if it was evaluated at this very iteration
  std::vector<int64_t> branches = {};     // branch.h
  bool superseded = false;                // by the newest step of the directory
};

// The facts of one step by its own manifest alone.
StepFacts StepFactsOf(const Manifest& manifest);
// Adds what later steps and the run directory say of each: `unhealthy` and `superseded`. Ascending by number.
void JudgeSteps(FileSystem& fs, const std::string& run_dir, std::vector<StepFacts>& facts);

// The facts of all steps whose manifest can be read, ascending by number. Errors: those of listing the
// directory.
Result<std::vector<StepFacts>> ReadStepFacts(FileSystem& fs, const std::string& run_dir);

// The step that was committed last; nullopt for no steps. A number in `listed` without facts is a step whose
// manifest cannot be read; it counts as one of the newest branch, so that a saver does not take its number
// for new.
std::optional<BranchedStep> NewestCommit(std::span<const StepFacts> steps,
                                         std::span<const int64_t> listed = {});
// The same of all steps in a run directory. Errors: those of listing it.
Result<std::optional<BranchedStep>> ReadNewestCommit(FileSystem& fs, const std::string& run_dir);

// The verdicts that trainings left in RUN/health. What cannot be read is left out.
std::vector<Condemnation> ReadCondemnations(FileSystem& fs, const std::string& run_dir);
// Durable when it returns. Replaces that of an earlier step of the same number.
Status WriteCondemnation(FileSystem& fs, const std::string& run_dir, const Condemnation& condemned);

}  // namespace cairn
