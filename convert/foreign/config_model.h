// A config.json as the manifest's `model`, and the places of the tensors that such a model is stored in.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/io/file_system.h"
#include "convert/families/expand.h"

namespace cairn {

struct ConfigModel {
  const Architecture* architecture = nullptr;  // of the family; null: no table knows it
  nlohmann::json model;                        // without a table: {"config": config.json, "hugging_face"?}
};

// `config` is config.json; generation_config.json beside it is kept, too. Errors: Corrupt, NotSupported and
// InvalidArgument naming the file.
Result<ConfigModel> ReadConfigModel(FileSystem& fs, const std::string& config);

// Fields that no table gives a meaning to, and that `allow` (globs of config.KEY) permits to ignore, are
// taken out of the model; a line each for the history.
std::vector<std::string> LeaveOutFields(const std::vector<std::string>& allow, nlohmann::json& model);

// The places of a model's stored tensors. Its arguments must outlive it.
class ModelPlaces {
 public:
  ModelPlaces(const Architecture& architecture, const ExpandedModel& expanded);

  // Into expanded.tensors. Names are taken with or without the prefix that a model without its head lacks.
  std::optional<uint32_t> Find(const std::string& name) const;
  // Computed again from the model's sizes; no parameter.
  bool IsBuffer(const std::string& name) const;
  // The output matrix, under whose name tied models may have a copy of the embeddings.
  bool IsHead(const std::string& name) const;

 private:
  const Architecture& architecture_;
  std::unordered_map<std::string, uint32_t> place_of_;
};

// The error that a model whose config.json ties them has both, and that they differ; it offers both ways out.
Status TiedButDifferent(const std::string& copy, const std::string& original, const std::string& config);

}  // namespace cairn
