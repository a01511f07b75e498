// Where trainers put their files: what they call the steps of a run, which file says that a step is finished,
// and where in a step its model and its optimizer are. A trainer is a row of layouts.json, without code.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/base/status.h"

namespace cairn {

// A step's model and optimizer, each a checkpoint in a directory of its own, below the step.
struct ModelAndOptimizer {
  std::string model, optimizer;
};

struct TrainerLayout {
  std::string program;
  std::string format;                 // System::name of its steps; empty: the row has no steps
  std::vector<std::string> steps;     // names of steps, '#' for a number; the last one is the step's
  std::vector<std::string> files;     // names of steps that are a file: '#' is the number, '*' any text
  std::vector<std::string> trackers;  // beside the steps, one of these names the newest finished one
  std::string last;                   // in a step: written after all others
  std::string unfinished;             // in a step: there until it is finished
  std::string last_after;  // written after files that match this glob, in their folder; empty: once a step
  std::vector<std::string>
      without_last;                 // globs of files of other programs' steps, named the same, without it
  std::vector<std::string> models;  // directories of the model below a step; the last name may be a glob
  std::vector<ModelAndOptimizer> parts;
  std::vector<std::string> configs;  // directories below a step or its model: config.json, tokenizer
  std::vector<std::string> beside;   // globs of other files beside the weights

  // The number in the name of a step; nullopt for other names.
  std::optional<int64_t> StepOf(std::string_view name) const;
  // The same for a step that is a file.
  std::optional<int64_t> StepOfFile(const std::string& name) const;
};

// In the order of recognition.
std::span<const TrainerLayout> TrainerLayouts();

// Recognised before all others. Call it before a path is looked at.
void PutFirst(std::vector<TrainerLayout> layouts);

// Errors: InvalidArgument naming `file` and the key.
Result<std::vector<TrainerLayout>> ReadLayouts(const std::string& file, std::string_view text);

}  // namespace cairn
