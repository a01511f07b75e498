// The steps of a run directory with a verdict on each, for resume, retention and listings.
#pragma once

#include <map>
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
  Descent descent = {};
  Lineage lineage = Lineage::kCurrent;  // to the newest step of the directory
  bool current() const { return lineage == Lineage::kCurrent; }
  BranchedStep commit() const { return {step, run, descent}; }
};

// The facts of one step by its own manifest alone.
StepFacts StepFactsOf(const Manifest& manifest);
// What a run directory shows about its newest step, apart from the readable manifests.
struct RunEvidence {
  std::vector<std::string> runs = {};     // RunsNamedAt()
  std::optional<int64_t> latest;          // that RUN/latest names
  std::vector<int64_t> unreadable = {};   // steps without a manifest that can be read
  std::vector<int64_t> saved_again = {};  // steps of which an earlier save still exists
};

// The step that was committed last; nullopt for no steps. Steps of the run that owns the directory, or of
// the one it is a copy of, come before others. A step that cannot be read is the newest one if `latest` names
// it, or if its number is the highest and `latest` does not name another; but not if the newest readable step
// came from it. Of such a step only the number is known. It begins a branch that descends from all lower
// numbers.
std::optional<BranchedStep> NewestCommit(std::span<const StepFacts> steps, const RunEvidence& evidence);

// The steps of a run directory.
struct RunSteps {
  std::vector<StepFacts> steps;          // of all whose manifest can be read, ascending by number
  std::map<int64_t, Status> unreadable;  // why the manifests of the others cannot
  std::optional<BranchedStep> newest;
};
// Errors: those of listing the directory.
Result<RunSteps> ReadRunSteps(FileSystem& fs, const std::string& run_dir);
// Sets what later steps and the run directory show about each step: `unhealthy` and `lineage`. Ascending by
// number. Returns the newest step.
std::optional<BranchedStep> JudgeSteps(FileSystem& fs, const std::string& run_dir,
                                       std::vector<StepFacts>& facts);

// A step of `commit` may be put into a run directory if no other run has steps there. Errors: InvalidArgument
// if one has, or owns the directory.
Status CheckSameRun(FileSystem& fs, const std::string& run_dir, const BranchedStep& commit);

// The verdicts that trainings left in RUN/health. Unreadable ones are left out.
std::vector<Condemnation> ReadCondemnations(FileSystem& fs, const std::string& run_dir);
// Durable when it returns. Replaces that of an earlier step of the same number.
Status WriteCondemnation(FileSystem& fs, const std::string& run_dir, const Condemnation& condemned);

}  // namespace cairn
