#include "convert/formats/dcp/dcp_param_groups.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

constexpr std::string_view kGroups = "param_groups";
constexpr std::string_view kFlat = "param_groups.";

std::optional<size_t> GroupIndex(const std::vector<std::string>& path) {
  const size_t size = path.size();
  if (size < 3 || path[size - 3] != kGroups) return std::nullopt;
  const std::string& number = path[size - 2];
  size_t group = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), group);
  const bool whole = error == std::errc() && end == number.data() + number.size();
  return whole && group < kMaxParamGroups ? std::optional(group) : std::nullopt;
}

// "layers.0.weight" and "lr".
std::optional<std::pair<std::string, std::string>> ParameterOf(const std::string& name,
                                                               const std::vector<std::string>& path) {
  const std::string& key = path.empty() ? name : path.back();
  const size_t begin = key.find(kFlat), end = key.rfind('.');
  const bool here = begin == 0 || (begin != std::string::npos && key[begin - 1] == '.');
  if (!here || end <= begin + kFlat.size()) return std::nullopt;
  return std::pair(key.substr(begin + kFlat.size(), end - begin - kFlat.size()), key.substr(end + 1));
}

}  // namespace

bool DcpParamGroups::IsOne(const std::string& name, const std::vector<std::string>& path) {
  return GroupIndex(path) || ParameterOf(name, path);
}

void DcpParamGroups::Add(const std::string& name, const std::vector<std::string>& path,
                         const nlohmann::json& value) {
  if (const auto group = GroupIndex(path)) return AddOfGroup(*group, path.back(), value);
  const auto parameter = ParameterOf(name, path);
  if (!parameter || value.is_discarded()) return;
  const std::string own = WithoutModuleWrappers(parameter->first);
  const auto [at, added] = place_.try_emplace(own, flat_.size());
  if (added) flat_.emplace_back(own, nlohmann::json::object());
  flat_[at->second].second[parameter->second] = value;
}

void DcpParamGroups::AddOfGroup(size_t group, const std::string& key, const nlohmann::json& value) {
  if (groups_.size() <= group) groups_.resize(group + 1, nlohmann::json::object());
  if (key != kGroupMembers) {
    if (!value.is_discarded()) groups_[group][key] = value;
    return;
  }
  nlohmann::json names = nlohmann::json::array();
  const bool all = value.is_array() &&
                   std::ranges::all_of(value, [](const nlohmann::json& name) { return name.is_string(); });
  for (size_t i = 0; all && i < value.size(); ++i)
    names.push_back(WithoutModuleWrappers(value[i].get<std::string>()));
  groups_[group][kGroupMembers] = all ? std::move(names) : nlohmann::json();
}

void DcpParamGroups::PutInto(nlohmann::json& state) const {
  std::vector<nlohmann::json> groups = groups_;
  std::map<std::string, size_t> of_values;
  for (const auto& [name, values] : flat_) {
    const auto [at, added] = of_values.try_emplace(values.dump(), groups.size());
    if (added) groups.push_back(values);
    groups[at->second][kGroupMembers].push_back(name);
  }
  if (groups.empty()) return;
  for (size_t g = 0; groups.size() > 1 && g < groups.size(); ++g)
    if (!groups[g].contains(kGroupMembers)) groups[g][kGroupMembers] = nullptr;
  state["param_groups"] = groups;
}

}  // namespace cairn
