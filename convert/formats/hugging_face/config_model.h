// A config.json as the manifest's `model`.
#pragma once

#include <string>
#include <vector>

#include "ckpt/families/family.h"
#include "ckpt/io/file_system.h"
#include "ckpt/model/source.h"

namespace cairn {

inline constexpr uint64_t kMaxConfigBytes = 1 << 20;

// The key of config.json that says how weights were stored, and not which they are.
inline constexpr const char* kQuantization = "quantization_config";

struct ConfigModel {
  std::string path;                // of the file
  const Family* family = nullptr;  // of the family; null: no table knows it
  // Without a table: only "config", which is config.json, and "hugging_face". Without kQuantization.
  Model model;
  nlohmann::json quantization;  // that key; null if the file has none

  // The model of a source that keeps its names. Its config.json is whole.
  Model UnderOwnNames() const;
};

// `config` is config.json; generation_config.json beside it is kept, too. Errors: Corrupt, NotSupported and
// InvalidArgument naming the file.
Result<ConfigModel> ReadConfigModel(FileSystem& fs, const std::string& config);

// Fields that no table gives a meaning to, and that `allow` (globs of config.KEY) permits to ignore, are
// taken out of the model; a line each for the history.
std::vector<std::string> LeaveOutFields(const std::vector<std::string>& allow, Model& model);

// Takes layers of multi-token prediction out of the model if no tensor of `stored` that `allow` does not
// leave out is of one: transformers saves models without them, but not their number. A line for the history
// if so.
std::vector<std::string> ChooseMtpLayers(const TensorTable& stored, const std::vector<std::string>& allow,
                                         ConfigModel& config);

}  // namespace cairn
