// The optimizer's groups of parameters as a target is to write them: which parameters, in which order, with
// which hyper-parameters.
//
// A source says its groups in its manifest's state (FORMAT.md, `param_groups`). A target either writes them
// as they are, or parts the parameters by a rule of its own; then the hyper-parameters go with the
// parameters, and what would have to be given up is an error.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/formats/training/training_tensors.h"

namespace cairn {

struct OptimizerGroups {
  struct Place {
    size_t group = 0;
    size_t index = 0;  // in the source's order of the group
  };
  std::vector<nlohmann::json> hyper;                // of each group, an object; empty: unknown
  std::map<std::string, Place, std::less<>> place;  // of each parameter of the optimizer, by canonical name

  size_t size() const { return hyper.size(); }
  size_t GroupOf(const std::string& parameter) const { return place.at(parameter).group; }
  // Canonical names, in order.
  std::vector<std::string> MembersOf(size_t group) const;
};

// Those of `param_groups` in a manifest's state; one of all parameters if it is empty. Two groups whose
// state says no members are matrices, then vectors, as cairn train makes them. Errors: NotSupported where
// nothing says which parameters are in which of several groups, or a parameter with a state is in none.
Result<OptimizerGroups> GroupsOfSource(const nlohmann::json& param_groups, const TrainingTensors& tensors);

// The same parameters in `count` groups by `rule`; each takes the hyper-parameters that its parameters had.
// Errors: NotSupported naming a hyper-parameter in which parameters of one group differ, and two of them;
// `allowed`: the first one's count, and `differing` gets the keys that no longer hold: "betas of NAME".
Result<OptimizerGroups> PartBy(const OptimizerGroups& groups, const TrainingTensors& tensors, size_t count,
                               const std::function<size_t(const ParameterSpec&)>& rule, bool allowed,
                               std::vector<std::string>& differing);

// Megatron's rule, and that of cairn train: matrices, which have weight decay, and the others.
inline size_t MatricesThenVectors(const ParameterSpec& spec) { return spec.shape.rank() > 1 ? 0 : 1; }

// The hyper-parameters of a group of AdamW if a source says some or none of them: torch's
// defaults, and in words for a note.
nlohmann::json WithAdamWDefaults(const nlohmann::json& hyper);
std::string AdamWDefaultsInWords();

}  // namespace cairn
