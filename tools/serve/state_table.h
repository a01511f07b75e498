// The tensors of a state dict under the names that a step gives them.
//
// A state dict names its values by paths (FQNs: the parts joined by dots). A step has a parameter and a role:
// "optimizer.state.layers.0.weight.exp_avg" is role exp_avg of layers.0.weight, so every tool of the suite
// can tell weights from states. The step's JSON tensor (state_dict.h) maps one name to the other.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/model/tensor.h"
#include "convert/formats/training/dcp_places.h"

namespace cairn {

struct StateTensor {
  std::string fqn;
  nlohmann::json path;  // in the state dict, see PathTexts; null if not flattened
  TensorEntry entry;
};

DcpName DcpNameOf(const StateTensor& tensor);

// The parts of a "path" as texts: texts, list positions, and {"key", "text"} of keys that are not texts.
// Empty if the value has no path.
std::vector<std::string> PathTexts(const nlohmann::json& path);

// Parses the trainer's description: {"fqn", "path"?, "dtype", "shape"}. The tensor has no place yet. Errors:
// Corrupt naming it.
Result<StateTensor> DescribedTensor(const nlohmann::json& described);

// Gives each tensor its parameter and role. `others`: FQNs of the other values in the state dict; an
// optimizer's param_groups show where its states are. A tensor without a role, or whose role is taken,
// becomes a weight under its whole FQN.
void PlaceTensors(std::vector<StateTensor>& tensors, const std::vector<std::string>& others);

// Sent from each rank to the rank that commits.
std::string EncodeTable(const std::vector<StateTensor>& tensors);
Result<std::vector<StateTensor>> DecodeTable(std::string_view bytes);

}  // namespace cairn
