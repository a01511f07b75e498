#include "ckpt/families/memory_names.h"

#include <algorithm>

#include "ckpt/base/parse_number.h"
#include "ckpt/families/families.h"
#include "transformers_names.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr std::string_view kNumber = "{}", kExpert = "{e}";

const json& Table() {
  static const json kTable = json::parse(kTransformersText);
  return kTable;
}

std::vector<std::string> Names(const json& names) {
  return names.is_string() ? std::vector{names.get<std::string>()} : names.get<std::vector<std::string>>();
}

// Calls `visit` for the parts of a name between dots.
template <typename Visit>
void ForEachPart(std::string_view name, const Visit& visit) {
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    visit(name.substr(at, end - at));
    at = end + 1;
  }
}

Status NotKnown(const std::string& type, const std::string& why) {
  return NotSupported(
      "transformers' names of model_type {} in memory and in files: {}; a training of it is carried without "
      "--config, under the names that it has",
      json(type).dump(), why);
}

}  // namespace

NumberedName::NumberedName(const std::string& name) {
  ForEachPart(name, [&](std::string_view part) {
    const auto number = ParseNumber<uint64_t>(part);
    if (number) numbers.push_back(*number);
    if (!pattern.empty()) pattern += '.';
    pattern += number && std::to_string(*number) == part ? kNumber : part;
  });
}

std::string FilledName(const std::string& name, const std::vector<uint64_t>& numbers, uint64_t expert) {
  std::string filled;
  size_t next = 0;
  ForEachPart(name, [&](std::string_view part) {
    if (!filled.empty()) filled += '.';
    if (part == kExpert)
      filled += std::to_string(expert);
    else if (part == kNumber)
      filled += std::to_string(numbers[next++]);
    else
      filled += part;
  });
  return filled;
}

MemoryNames::MemoryNames(const std::string& type, const json& group)
    : class_name_(group["types"][type]),
      first_(group["first"]),
      tied_(group.value("tied", std::map<std::string, std::string>())),
      trained_(group.value("trained", std::map<std::string, std::string>())),
      ties_(group.value("ties", false)),
      same_(group.value("same", std::set<std::string>())),
      touched_(group.value("touched", std::vector<std::string>())) {
  for (const json& row : group.value("rows", json::array())) {
    const NamesRow names{Names(row["memory"]), Names(row["files"])};
    if (!names.memory[0].ends_with('.')) {
      AddRow(names);
      continue;
    }
    for (const char* of_module : {"weight", "bias"})  // both have the module's rule
      AddRow({{names.memory[0] + of_module}, {names.files[0] + of_module}});
  }
}

void MemoryNames::AddRow(NamesRow row) {
  const auto list = [&](Index& index, const std::vector<std::string>& names) {
    for (size_t i = 0; i < names.size(); ++i) {
      std::string pattern = names[i];
      if (const size_t at = pattern.find(kExpert); at != pattern.npos)
        pattern.replace(at, kExpert.size(), kNumber);
      index.emplace(std::move(pattern), std::pair(rows_.size(), i));
    }
  };
  list(of_memory_, row.memory);
  list(of_files_, row.files);
  rows_.push_back(std::move(row));
}

MemoryNames::Found MemoryNames::Find(const Index& index, const std::string& name) const {
  NumberedName numbered(name);
  const auto found = index.find(numbered.pattern);
  if (found == index.end()) return {};
  Found place{&rows_[found->second.first], found->second.second, std::move(numbered.numbers)};
  const auto& names = &index == &of_memory_ ? place.row->memory : place.row->files;
  const std::string& of_row = names[place.index];
  if (const size_t at = of_row.find(kExpert); at != of_row.npos) {
    size_t before = 0;  // numbers
    ForEachPart(std::string_view(of_row).substr(0, at),
                [&](std::string_view part) { before += part == kNumber ? 1 : 0; });
    place.expert = place.numbers[before];
    place.numbers.erase(place.numbers.begin() + static_cast<std::ptrdiff_t>(before));
  }
  return place;
}

bool MemoryNames::IsUnknown(const std::string& name) const {
  const auto has = [&](const std::string& text) { return name.find(text) != name.npos; };
  return std::ranges::any_of(touched_, has) && !same_.contains(NumberedName(name).pattern);
}

std::map<std::string, std::string> MemoryNames::Tied(const json& config) const {
  const json ties = config.value("tie_word_embeddings", json());
  return (ties.is_boolean() ? ties.get<bool>() : ties_) ? tied_ : std::map<std::string, std::string>();
}

TypeCuts CutsOfType(const json& config) {
  const std::string type = ModelTypeOf(config);
  if (const json& uncut = Table()["uncut"]; uncut.contains(type)) return {{}, uncut[type]};
  TypeCuts cuts;
  for (const json& plan : Table()["plans"]) {
    if (std::ranges::find(plan["types"], json(type)) == plan["types"].end()) continue;
    for (const auto& [dimension, names] : plan["cuts"].items())
      for (const json& name : names) cuts.dimensions.emplace(name, ParseNumber<int>(dimension).value_or(0));
  }
  if (cuts.dimensions.empty()) cuts.why = "transformers has no plan of cuts (base_model_tp_plan) for it";
  return cuts;
}

Result<std::shared_ptr<const MemoryNames>> FindMemoryNames(const json& config) {
  const std::string type = ModelTypeOf(config);
  const auto& groups = Table()["groups"];
  const auto group =
      std::ranges::find_if(groups, [&](const json& one) { return one["types"].contains(type); });
  if (group == groups.end()) {
    const json &refused = Table()["refused"], &unseen = Table()["unseen"];
    if (refused.contains(type)) return NotKnown(type, refused[type]);
    if (std::ranges::find(unseen, json(type)) != unseen.end())
      return NotKnown(type, "generated/transformers.json does not have them");
    return std::shared_ptr<const MemoryNames>();
  }
  auto names = std::make_shared<const MemoryNames>(type, *group);
  const json classes = config.value("architectures", json());
  if (classes.is_array() && !classes.empty() && classes[0].is_string() && classes[0] != names->class_name())
    return NotKnown(type, fmt::format("only those of {} are known, and this is {}", names->class_name(),
                                      classes[0].get<std::string>()));
  return names;
}

}  // namespace cairn
