#include "convert/formats/dcp/dcp_param_groups.h"

#include <charconv>

#include "convert/formats/training/param_groups.h"

namespace cairn {
namespace {

constexpr std::string_view kGroups = "param_groups";
constexpr std::string_view kFlat = "param_groups.";

std::optional<size_t> GroupIndex(const DcpBytes& bytes) {
  const size_t size = bytes.path.size();
  if (size < 3 || bytes.path[size - 3] != kGroups) return std::nullopt;
  const std::string& number = bytes.path[size - 2];
  size_t group = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), group);
  const bool whole = error == std::errc() && end == number.data() + number.size();
  return whole && group < kMaxParamGroups ? std::optional(group) : std::nullopt;
}

// "layers.0.weight" and "lr".
std::optional<std::pair<std::string, std::string>> ParameterOf(const DcpBytes& bytes) {
  const std::string& key = bytes.path.empty() ? bytes.name : bytes.path.back();
  const size_t begin = key.find(kFlat), end = key.rfind('.');
  const bool here = begin == 0 || (begin != std::string::npos && key[begin - 1] == '.');
  if (!here || end <= begin + kFlat.size()) return std::nullopt;
  return std::pair(key.substr(begin + kFlat.size(), end - begin - kFlat.size()), key.substr(end + 1));
}

}  // namespace

bool DcpParamGroups::IsOne(const DcpBytes& bytes) { return GroupIndex(bytes) || ParameterOf(bytes); }

void DcpParamGroups::Add(const DcpBytes& bytes, const PyValue& value,
                         const std::function<std::string(std::string)>& name_of) {
  if (const auto group = GroupIndex(bytes)) return AddOfGroup(*group, bytes.path.back(), value, name_of);
  const auto parameter = ParameterOf(bytes);
  const auto plain = PlainJson(value);
  if (!parameter || !plain) return;
  const std::string name = name_of(parameter->first);
  const auto [at, added] = place_.try_emplace(name, flat_.size());
  if (added) flat_.emplace_back(name, nlohmann::json::object());
  flat_[at->second].second[parameter->second] = *plain;
}

void DcpParamGroups::AddOfGroup(size_t group, const std::string& key, const PyValue& value,
                                const std::function<std::string(std::string)>& name_of) {
  if (groups_.size() <= group) groups_.resize(group + 1, nlohmann::json::object());
  if (key != kGroupMembers) {
    if (const auto plain = PlainJson(value)) groups_[group][key] = *plain;
    return;
  }
  nlohmann::json names = nlohmann::json::array();
  for (const PyValue* item : value.items)
    if (const auto name = AsText(item)) names.push_back(name_of(std::string(*name)));
  const bool all = value.is(PyKind::kList) && names.size() == value.items.size();
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
