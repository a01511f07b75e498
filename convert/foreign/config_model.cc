#include "convert/foreign/config_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "ckpt/base/glob.h"
#include "ckpt/io/strict_json.h"
#include "convert/families/families.h"
#include "convert/families/hugging_face_config.h"

namespace cairn {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr size_t kNamesInMessage = 4;

}  // namespace

Result<ConfigModel> ReadConfigModel(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const json config, ReadJsonObject(fs, path, kMaxConfigBytes));
  const json type = config.value("model_type", json());
  const Architecture* architecture = FindArchitecture(type.is_string() ? type.get<std::string>() : "");
  const std::string directory = ParentDir(path);
  json kept = json::object();
  const std::string generation = JoinPath(directory, "generation_config.json");
  if (fs.Stat(generation).ok()) {
    CAIRN_ASSIGN_OR_RETURN(kept["generation_config"], ReadJsonObject(fs, generation, kMaxConfigBytes));
  }
  if (architecture == nullptr) {
    json model = {{"config", config}};
    if (!kept.empty()) model["hugging_face"] = std::move(kept);
    return ConfigModel{nullptr, std::move(model)};
  }
  Result<json> model = ModelOfConfig(*architecture, config);
  if (!model.ok()) return model.status().WithContext(directory);
  kept["config"] = config;
  (*model)["hugging_face"] = std::move(kept);
  return ConfigModel{architecture, *std::move(model)};
}

std::vector<std::string> LeaveOutFields(const std::vector<std::string>& allow, json& model) {
  std::vector<std::string> history;
  const json others = model.value("other", json::object());
  json left = json::object();
  for (const auto& [name, value] : others.items())
    if (FitsAnyGlob(name, allow))
      history.push_back(fmt::format("import: {} was left out of account (--allow)", name));
    else
      left[name] = value;
  model.erase("other");
  if (!left.empty()) model["other"] = left;
  return history;
}

ModelPlaces::ModelPlaces(const Architecture& architecture, const ExpandedModel& expanded)
    : architecture_(architecture) {
  for (uint32_t i = 0; i < expanded.tensors.size(); ++i) place_of_.emplace(expanded.tensors[i].name, i);
  for (const Module& module : architecture.modules) {
    const auto place = place_of_.find(module.name + ".weight");
    if (!module.also.empty() && place != place_of_.end())
      place_of_.emplace(module.also + ".weight", place->second);
  }
}

bool ModelPlaces::IsHead(const std::string& name) const {
  return std::ranges::any_of(architecture_.modules, [&](const Module& module) {
    return module.canonical[0] == "output" &&
           (name == module.name + ".weight" || (!module.also.empty() && name == module.also + ".weight"));
  });
}

std::optional<uint32_t> ModelPlaces::Find(const std::string& name) const {
  auto place = place_of_.find(name);
  if (place == place_of_.end()) place = place_of_.find(architecture_.base_prefix + name);
  return place == place_of_.end() ? std::nullopt : std::optional(place->second);
}

bool ModelPlaces::IsBuffer(const std::string& name) const { return FitsAnyGlob(name, architecture_.buffers); }

Status TiedButDifferent(const std::string& copy, const std::string& original, const std::string& config) {
  return Corrupt(
      "{} differs from {}, though {} ties them; set tie_word_embeddings to false there, or leave it out with "
      "--allow '{}'",
      copy, original, config, copy);
}

std::string ShortList(const std::vector<std::string>& names) {
  const auto shown = std::span(names).first(std::min(names.size(), kNamesInMessage));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (names.size() > shown.size()) text += fmt::format(" and {} more", names.size() - shown.size());
  return text;
}

}  // namespace cairn
