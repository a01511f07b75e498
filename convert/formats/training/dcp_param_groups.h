// The optimizer's groups of parameters in a checkpoint of torch.distributed.checkpoint, in both of torch's
// forms: `param_groups` as a list, "optimizer.param_groups.0.lr" with the names of its members; or flattened,
// with every parameter's own "param_groups.layers.0.weight.lr".
//
// Source: torch 2.11, torch/distributed/checkpoint/state_dict.py.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "convert/formats/training/dcp_places.h"
#include "convert/torch/pickle_value.h"

namespace cairn {

// A plain value, or the names of a group's members; discarded if JSON cannot express it.
nlohmann::json HyperParameter(const PyValue& value);

class DcpParamGroups {
 public:
  explicit DcpParamGroups(const DcpOptimizers& optimizers) : optimizers_(optimizers) {}

  // Whether an item is a hyper-parameter, or the members of a group.
  static bool IsOne(const std::string& name, const std::vector<std::string>& path);

  // `value` is the item's; it is left out if it is discarded, since JSON cannot express it. Parameters are
  // named without the wrappers of their modules.
  void Add(const std::string& name, const std::vector<std::string>& path, const nlohmann::json& value);

  bool flat() const { return !flat_.empty(); }

  // As `param_groups` of a manifest's state: those of one optimizer after the other; flattened, parameters of
  // equal hyper-parameters are a group. Nothing if none was added. `apart`: members have their optimizer's
  // name before theirs, as the states have (dcp_places.h). Otherwise, if a member is in two groups, the
  // members of all groups are unknown (null).
  void PutInto(nlohmann::json& state, bool apart) const;

 private:
  using Groups = std::vector<nlohmann::json>;
  struct Flat {
    std::string optimizer, parameter;
    nlohmann::json values;
  };

  static void AddOfGroup(Groups& groups, size_t group, const std::string& key, const nlohmann::json& value);

  const DcpOptimizers& optimizers_;
  std::map<std::string, Groups> groups_;                         // by the text before "param_groups."
  std::vector<Flat> flat_;                                       // each parameter's hyper-parameters
  std::map<std::pair<std::string, std::string>, size_t> place_;  // of optimizer and parameter, in flat_
};

}  // namespace cairn
