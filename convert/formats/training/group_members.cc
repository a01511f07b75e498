#include "convert/formats/training/group_members.h"

#include <map>

#include "ckpt/model/canonical_modules.h"
#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

struct MegatronGroup {
  bool decay = true;
  bool decoupled = false;  // its learning rate
  bool experts = false;    // of an optimizer of their own
  bool momentum = false;   // likewise of Muon, beside Adam
  bool operator==(const MegatronGroup&) const = default;
};

// Since 0.16 a decoupled rate is a group that is not of the default configuration.
MegatronGroup FactsOf(const nlohmann::json& group) {
  const auto is = [&](const char* key, const nlohmann::json& value) {
    return group.is_object() && group.contains(key) && group[key] == value;
  };
  return {.decay = !is("wd_mult", 0.0),
          .decoupled = is("is_decoupled_lr", true) || is("default_config", false),
          .experts = is("is_expert_parallel", true),
          .momentum = group.is_object() && group.contains("momentum")};
}

bool IsWordEmbeddingOrHead(const std::string& name) {
  return name == "embedding.word.weight" || name == "output.weight";
}

}  // namespace

void GroupMembers::Add(size_t group, const std::string& parameter) {
  if (group >= groups_.size()) groups_.resize(group + 1);
  if (seen_.insert(parameter).second) groups_[group].push_back(parameter);
}

void GroupMembers::PutInto(nlohmann::json& param_groups) const {
  const bool fits = param_groups.size() == groups_.size();
  for (size_t g = 0; g < param_groups.size(); ++g)
    if (param_groups[g].is_object() && (fits || param_groups.size() > 1))
      param_groups[g][kGroupMembers] = fits ? nlohmann::json(groups_[g]) : nlohmann::json();
}

GroupMembers MembersOfArrays(const StoredCatalog& catalog,
                             const std::vector<std::vector<std::string>>& names) {
  std::map<std::string_view, std::vector<uint32_t>> tensors;  // of each name, in the order of the parts
  for (const ArrayPart& part : catalog.parts)
    if (IsOptimizerState(catalog.tensors[part.tensor].role))
      tensors[catalog.arrays[part.array].name].push_back(part.tensor);
  GroupMembers members(names.size());
  for (size_t g = 0; g < names.size(); ++g)
    for (const std::string& name : names[g])
      for (const uint32_t tensor : tensors[name]) members.Add(g, catalog.tensors[tensor].spec.name);
  return members;
}

void PutMembersByMegatronsRule(const TensorTable& catalog, nlohmann::json& param_groups) {
  std::vector<MegatronGroup> facts;
  for (const auto& group : param_groups) facts.push_back(FactsOf(group));
  GroupMembers members(facts.size());
  const auto says = [](const nlohmann::json& group) {
    return group.is_object() && group.contains("wd_mult");
  };
  if (facts.empty() || (facts.size() == 2 && std::ranges::none_of(param_groups, says))) return;
  const bool decoupled = std::ranges::any_of(facts, &MegatronGroup::decoupled),
             experts = std::ranges::any_of(facts, &MegatronGroup::experts);
  const auto with_momentum = std::ranges::count_if(facts, &MegatronGroup::momentum);
  std::set<std::string_view> momenta;
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.role == Role::kMomentumBuffer) momenta.insert(tensor.spec.name);
  for (const ParameterSpec& spec : catalog.Parameters()) {
    const CanonicalModule* module = ModuleOfParameter(spec.name);
    if (module && module->keeps_type) continue;  // a buffer
    const MegatronGroup wanted{
        spec.is_matrix(), decoupled && IsWordEmbeddingOrHead(spec.name), experts && spec.of_experts,
        with_momentum > 0 && (std::cmp_equal(with_momentum, facts.size()) || momenta.contains(spec.name))};
    if (std::ranges::count(facts, wanted) == 1)
      members.Add(static_cast<size_t>(std::ranges::find(facts, wanted) - facts.begin()), spec.name);
    else
      return GroupMembers().PutInto(param_groups);
  }
  members.PutInto(param_groups);
}

std::vector<std::string> WithoutRoundRobin(const std::vector<std::string>& order, size_t ranks) {
  std::vector<std::string> original(order.size());
  size_t from = 0;
  for (size_t rank = 0; rank < ranks; ++rank)
    for (size_t i = rank; i < order.size(); i += ranks) original[i] = order[from++];
  return original;
}

}  // namespace cairn
