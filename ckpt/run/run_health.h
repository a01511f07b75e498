// The steps of a run directory with the verdict on each: what resume, retention and listings go by.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/io/file_system.h"
#include "ckpt/run/health.h"

namespace cairn {

struct StepFacts {
  int64_t step = 0;
  int64_t tokens = 0;
  std::string unhealthy;         // why; empty where it is healthy, or nothing is known
  std::optional<Health> health;  // by its own record
  std::string run;
  int64_t epoch = 0;                      // passes over the training data that are complete
  std::optional<double> validation_loss;  // where it was evaluated at this very iteration
};

// Of all steps that have a manifest, ascending. Errors: those of listing the directory.
Result<std::vector<StepFacts>> ReadStepFacts(FileSystem& fs, const std::string& run_dir);

// The verdicts that trainings left in RUN/health. What cannot be read is left out.
std::vector<Condemnation> ReadCondemnations(FileSystem& fs, const std::string& run_dir);
// Durable when it returns. Replaces that of an earlier step of the same number.
Status WriteCondemnation(FileSystem& fs, const std::string& run_dir, const Condemnation& condemned);

}  // namespace cairn
