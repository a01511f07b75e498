// The tensors of a state dict under the names that a step gives them.
//
// A state dict names what it holds by paths (FQNs: their parts joined by dots). A step has a parameter and a
// role: "optimizer.state.layers.0.weight.exp_avg" is role exp_avg of layers.0.weight, so that every tool of
// the suite knows weights from states. Both names go into the step's own JSON tensor (state_dict.h), which
// leads back from one to the other.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/model/tensor.h"

namespace cairn {

struct StateTensor {
  std::string fqn;
  nlohmann::json path;  // in the state dict, see PathTexts; null: not flattened
  TensorEntry entry;
};

// The parts of a "path" as texts: texts, list positions, and {"key", "text"} of keys that are not texts.
// Empty if there is no path.
std::vector<std::string> PathTexts(const nlohmann::json& path);

// One as the trainer describes it: {"fqn", "path"?, "dtype", "shape"}; it has no place yet. Errors: Corrupt
// naming it.
Result<StateTensor> DescribedTensor(const nlohmann::json& described);

// Gives each its parameter and role. `others`: FQNs of what is in the state dict beside them, as an
// optimizer's param_groups say where its states are. One whose role is taken, or none, is a weight under its
// whole FQN.
void PlaceTensors(std::vector<StateTensor>& tensors, const std::vector<std::string>& others);

// For the way from a rank to the one that commits.
std::string EncodeTable(const std::vector<StateTensor>& tensors);
Result<std::vector<StateTensor>> DecodeTable(std::string_view bytes);

}  // namespace cairn
