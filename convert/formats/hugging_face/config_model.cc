#include "convert/formats/hugging_face/config_model.h"

#include <algorithm>

#include "ckpt/base/glob.h"
#include "ckpt/base/parse_number.h"
#include "ckpt/families/families.h"
#include "ckpt/families/hugging_face_config.h"
#include "ckpt/io/strict_json.h"
#include "ckpt/step/partial_dir.h"

namespace cairn {

using nlohmann::json;

Result<ConfigModel> ReadConfigModel(FileSystem& fs, const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(json config, ReadJsonObject(fs, path, kMaxConfigBytes));
  json quantization = config.value(kQuantization, json());
  if (!quantization.is_null()) config.erase(kQuantization);
  const Family* family = FindFamily(ModelTypeOf(config));
  const std::string directory = ParentDir(path);
  json kept = json::object();
  const std::string generation = JoinPath(directory, "generation_config.json");
  if (fs.Stat(generation).ok()) {
    CAIRN_ASSIGN_OR_RETURN(kept["generation_config"], ReadJsonObject(fs, generation, kMaxConfigBytes));
  }
  if (family == nullptr) {
    Model model;
    model.rest["config"] = config;
    if (!kept.empty()) model.rest["hugging_face"] = std::move(kept);
    return ConfigModel{path, nullptr, std::move(model), std::move(quantization)};
  }
  Result<Model> model = ModelOfConfig(*family, config);
  if (!model.ok()) return model.status().WithContext(directory);
  kept["config"] = config;
  model->rest["hugging_face"] = std::move(kept);
  return ConfigModel{path, family, *std::move(model), std::move(quantization)};
}

Model ConfigModel::UnderOwnNames() const {
  Model own = model;
  if (family != nullptr) {
    own = Model();
    json& kept = own.rest["hugging_face"] = model.Get("hugging_face");
    own.rest["config"] = std::move(kept["config"]);
    kept.erase("config");
  }
  if (!quantization.is_null()) own.rest["config"][kQuantization] = quantization;
  return own;
}

std::vector<std::string> LeaveOutFields(const std::vector<std::string>& allow, Model& model) {
  std::vector<std::string> history;
  json left;
  for (const auto& [name, value] : model.other.items())
    if (FitsAnyGlob(name, allow))
      history.push_back(fmt::format("import: {} was left out of account (--allow)", name));
    else
      left[name] = value;
  model.other = std::move(left);
  return history;
}

std::vector<std::string> ChooseMtpLayers(const TensorTable& stored, const std::vector<std::string>& allow,
                                         ConfigModel& config) {
  const int64_t stated = IntOf(config.model.mtp_layers), layers = IntOf(config.model.num_layers);
  constexpr std::string_view kLayers = "layers.";
  const auto is_held = [&](const TensorEntry& tensor) {
    const std::string_view name = tensor.spec.name;
    const size_t at = name.find(kLayers);
    if (at == std::string_view::npos || FitsAnyGlob(tensor.spec.name, allow)) return false;
    const std::string_view rest = name.substr(at + kLayers.size());
    const auto layer = ParseNumber<int64_t>(rest.substr(0, rest.find('.')));
    return layer && *layer >= layers && *layer - layers < stated;
  };
  if (stated == 0 || std::ranges::any_of(stored.tensors, is_held)) return {};
  config.model.mtp_layers = nullptr;
  return {fmt::format("import: the {} layers of multi-token prediction that {} states are missing", stated,
                      config.path)};
}

}  // namespace cairn
