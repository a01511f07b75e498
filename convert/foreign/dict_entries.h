// Tells what the entries of a state dict are: the model's, or the training's own, such as losses that it
// remembers.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

// One entry of a dict that holds a model, and beside it perhaps optimizers (which are not among these) and
// values of the training.
struct DictEntry {
  std::string key;
  bool is_tensor = false;      // and not a dict of some
  int rank = 0;                // the most dimensions of a tensor in it
  bool has_parameter = false;  // a tensor in it is called weight or bias, as those of modules are
  bool is_trained = false;     // an optimizer has states of a tensor in it
};

// For each entry whether it is the training's. Known as such are the usual names (IsTrainingName); numbers
// beside dicts of tensors; and beside a model, which its usual name or its optimizer shows, each entry
// without a matrix and without a parameter by name. The tensors in a model's own dict are parameters, numbers
// too.
std::vector<bool> AreOfTraining(std::span<const DictEntry> entries);

// True for the names that trainers give, at the top of a checkpoint, to the progress of a training: random
// states, schedulers, dataloaders. Only the program that wrote them can use them.
bool IsTrainingName(std::string_view name);

// How far a training was is known by these names.
std::span<const std::string_view> ProgressNames();

}  // namespace cairn
