#include "convert/formats/training/dcp_param_groups.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "ckpt/base/parse_number.h"
#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

constexpr std::string_view kGroups = "param_groups";
constexpr std::string_view kFlat = "param_groups.";

std::optional<size_t> GroupIndex(const std::vector<std::string>& path) {
  const size_t size = path.size();
  if (size < 3 || path[size - 3] != kGroups) return std::nullopt;
  const auto group = ParseNumber<size_t>(path[size - 2]);
  return group < kMaxParamGroups ? group : std::nullopt;
}

// The part before "param_groups." of the name of a group's item.
std::string OptimizerOf(const std::string& name, const std::vector<std::string>& path) {
  size_t own = 2;
  for (const std::string& part : std::span(path).last(3)) own += part.size();
  return name.substr(0, name.size() - std::min(own, name.size()));
}

struct FlatItem {
  std::string optimizer, rest;  // "optim." and "layers.0.weight.lr"
};

std::optional<FlatItem> FlatItemOf(const std::string& name, const std::vector<std::string>& path) {
  const std::string& key = path.empty() ? name : path.back();
  const size_t begin = key.find(kFlat);
  const bool here = begin == 0 || (begin != std::string::npos && key[begin - 1] == '.');
  if (!here || key.rfind('.') <= begin + kFlat.size()) return std::nullopt;
  return FlatItem{name.substr(0, name.size() - std::min(name.size(), key.size() - begin)),
                  WithoutModuleWrappers(key.substr(begin + kFlat.size()))};
}

// True if no two groups share a member.
bool HaveOwnMembers(const std::vector<nlohmann::json>& groups) {
  std::set<std::string> seen;
  for (const nlohmann::json& group : groups)
    for (const auto& name : group.value(kGroupMembers, nlohmann::json()))
      if (name.is_string() && !seen.insert(name.get<std::string>()).second) return false;
  return true;
}

}  // namespace

nlohmann::json HyperParameter(const PyValue& value) {
  if (auto plain = PlainJson(value)) return *std::move(plain);
  nlohmann::json names = nlohmann::json::array();
  for (const PyValue* item : value.items)
    if (const auto name = AsText(item)) names.push_back(std::string(*name));
  const bool all = value.is(PyKind::kList) && names.size() == value.items.size();
  return all ? names : nlohmann::json(nlohmann::json::value_t::discarded);
}

bool DcpParamGroups::IsOne(const std::string& name, const std::vector<std::string>& path) {
  return GroupIndex(path) || FlatItemOf(name, path);
}

void DcpParamGroups::Add(const std::string& name, const std::vector<std::string>& path,
                         const nlohmann::json& value) {
  if (const auto group = GroupIndex(path))
    return AddOfGroup(groups_[OptimizerOf(name, path)], *group, path.back(), value);
  const auto item = FlatItemOf(name, path);
  if (!item || value.is_discarded()) return;
  const size_t end = optimizers_.EndOfParameter(item->rest);
  const std::string own = item->rest.substr(0, end);
  const auto [at, added] = place_.try_emplace({item->optimizer, own}, flat_.size());
  if (added) flat_.push_back({item->optimizer, own, nlohmann::json::object()});
  flat_[at->second].values[item->rest.substr(end + 1)] = value;
}

void DcpParamGroups::AddOfGroup(Groups& groups, size_t group, const std::string& key,
                                const nlohmann::json& value) {
  if (groups.size() <= group) groups.resize(group + 1, nlohmann::json::object());
  if (key != kGroupMembers) {
    if (!value.is_discarded()) groups[group][key] = value;
    return;
  }
  nlohmann::json names = nlohmann::json::array();
  const bool all = value.is_array() &&
                   std::ranges::all_of(value, [](const nlohmann::json& name) { return name.is_string(); });
  for (size_t i = 0; all && i < value.size(); ++i)
    names.push_back(WithoutModuleWrappers(value[i].get<std::string>()));
  groups[group][kGroupMembers] = all ? std::move(names) : nlohmann::json();
}

void DcpParamGroups::PutInto(nlohmann::json& state, bool apart) const {
  const auto name_of = [&](const std::string& optimizer, const std::string& parameter) {
    return apart ? optimizer + parameter : parameter;
  };
  Groups groups;
  for (const auto& [optimizer, own] : groups_) {
    for (nlohmann::json group : own) {
      if (apart && group.contains(kGroupMembers))
        for (auto& name : group[kGroupMembers]) name = name_of(optimizer, name.get<std::string>());
      groups.push_back(std::move(group));
    }
  }
  std::map<std::pair<std::string, std::string>, size_t> of_values;
  for (const auto& [optimizer, parameter, values] : flat_) {
    const auto [at, added] = of_values.try_emplace({optimizer, values.dump()}, groups.size());
    if (added) groups.push_back(values);
    groups[at->second][kGroupMembers].push_back(name_of(optimizer, parameter));
  }
  if (groups.empty()) return;
  const bool known = HaveOwnMembers(groups);
  for (size_t g = 0; groups.size() > 1 && g < groups.size(); ++g)
    if (!known || !groups[g].contains(kGroupMembers)) groups[g][kGroupMembers] = nullptr;
  state["param_groups"] = groups;
}

}  // namespace cairn
