// GroupsOfSource() decides who is in which group: by the names that the source states, else all in one, else
// matrices and vectors where two groups say nothing; anything else is refused. PartBy() makes new groups by
// a target's rule. The first parameter of a new group gives its hyper-parameters, and each further one must
// have the same or be allowed to lose its own.

#include "convert/formats/training/optimizer_groups.h"

#include <algorithm>

#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

// torch 2.11, torch/optim/adamw.py.
nlohmann::json AdamWDefaults() {
  return {{"lr", 1e-3},
          {"betas", {0.9, 0.999}},
          {"eps", 1e-8},
          {"weight_decay", 1e-2},
          {"amsgrad", false},
          {"maximize", false},
          {"foreach", nullptr},
          {"capturable", false},
          {"fused", nullptr},
          {"differentiable", false},
          {"decoupled_weight_decay", true}};
}

nlohmann::json WithoutMembers(nlohmann::json group) {
  if (!group.is_object()) return nlohmann::json::object();
  group.erase(kGroupMembers);
  return group;
}

bool SaysMembers(const nlohmann::json& group) {
  const auto members = group.find(kGroupMembers);
  return members != group.end() && members->is_array();
}

// Nothing said, as opposed to "unknown", which is null.
bool IsSilent(const nlohmann::json& group) { return !group.contains(kGroupMembers); }

void AddStated(const nlohmann::json& param_groups, OptimizerGroups& groups) {
  for (size_t g = 0; g < param_groups.size(); ++g) {
    size_t index = 0;
    for (const auto& name : param_groups[g].value(kGroupMembers, nlohmann::json::array()))
      if (name.is_string()) groups.place.emplace(name.get<std::string>(), OptimizerGroups::Place{g, index++});
  }
}

void AddByRule(const TrainingTensors& tensors, const std::function<size_t(const ParameterSpec&)>& rule,
               OptimizerGroups& groups) {
  std::vector<size_t> sizes(groups.size());
  for (const TrainingParameter& parameter : tensors.parameters) {
    const size_t g = rule(parameter.spec);
    groups.place.emplace(parameter.spec.name, OptimizerGroups::Place{g, sizes[g]++});
  }
}

// The first key in which two groups' hyper-parameters differ; empty if they are equal. A group's name does
// not count.
std::string DifferenceOf(const nlohmann::json& a, const nlohmann::json& b) {
  for (const auto& [key, value] : a.items())
    if (key != "name" && (!b.contains(key) || b[key] != value)) return key;
  for (const auto& [key, value] : b.items())
    if (key != "name" && !a.contains(key)) return key;
  return "";
}

}  // namespace

std::vector<std::string> OptimizerGroups::MembersOf(size_t group) const {
  std::vector<std::pair<size_t, std::string>> members;
  for (const auto& [name, at] : place)
    if (at.group == group) members.emplace_back(at.index, name);
  std::ranges::sort(members);
  std::vector<std::string> names;
  for (auto& [index, name] : members) names.push_back(std::move(name));
  return names;
}

Result<OptimizerGroups> GroupsOfSource(const nlohmann::json& param_groups, const TrainingTensors& tensors) {
  OptimizerGroups groups;
  for (const auto& group : param_groups) {
    if (!group.is_object())
      return Corrupt("param_groups of the training's state has a group that is {}", group.type_name());
    groups.hyper.push_back(WithoutMembers(group));
  }
  if (groups.hyper.empty()) groups.hyper.push_back(nlohmann::json::object());
  const auto of_all = [](const ParameterSpec&) { return size_t{0}; };
  if (std::ranges::any_of(param_groups, SaysMembers)) {
    AddStated(param_groups, groups);
  } else if (groups.size() == 1) {
    AddByRule(tensors, of_all, groups);
  } else if (groups.size() == 2 && std::ranges::all_of(param_groups, IsSilent)) {
    AddByRule(tensors, MatricesThenVectors, groups);
  } else {
    return NotSupported(
        "the optimizer has {} groups of parameters, and nothing says which are where; choose --param-groups "
        "1 or 2",
        groups.size());
  }
  for (const TrainingParameter& parameter : tensors.parameters)
    if (parameter.has_state() && !groups.place.contains(parameter.spec.name))
      return NotSupported("{} has an optimizer's state and is in none of its {} groups of parameters",
                          parameter.spec.name, groups.size());
  return groups;
}

Result<OptimizerGroups> PartBy(const OptimizerGroups& groups, const TrainingTensors& tensors, size_t count,
                               const std::function<size_t(const ParameterSpec&)>& rule, bool allowed,
                               std::vector<std::string>& differing) {
  OptimizerGroups parted;
  parted.hyper.resize(count, groups.hyper[0]);
  std::vector<const std::string*> first(count);
  std::vector<size_t> sizes(count);
  for (const TrainingParameter& parameter : tensors.parameters) {
    const std::string& name = parameter.spec.name;
    const auto before = groups.place.find(name);
    if (before == groups.place.end()) continue;
    const size_t g = rule(parameter.spec);
    const nlohmann::json& hyper = groups.hyper[before->second.group];
    if (!first[g]) parted.hyper[g] = hyper;
    const std::string difference = DifferenceOf(parted.hyper[g], hyper);
    if (!difference.empty() && !allowed)
      return NotSupported(
          "{} and {} differ in the optimizer's {}, but share a group here; --allow optimizer gives both "
          "that of the first",
          *first[g], name, difference);
    if (!difference.empty()) differing.push_back(difference + " of " + name);
    if (!first[g]) first[g] = &name;
    parted.place.emplace(name, OptimizerGroups::Place{g, sizes[g]++});
  }
  return parted;
}

nlohmann::json WithAdamWDefaults(const nlohmann::json& hyper) {
  nlohmann::json chosen = AdamWDefaults();
  chosen.update(hyper);
  return chosen;
}

std::string AdamWDefaultsInWords() {
  return "no file says the optimizer's hyper-parameters; torch.optim.AdamW's defaults stand there (lr 0.001, "
         "betas 0.9 and 0.999, eps 1e-08, weight decay 0.01)";
}

}  // namespace cairn
