// Which parameters of a config.json's model the tensors of a checkpoint hold that has Hugging Face's names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ckpt/base/box_map.h"
#include "ckpt/model/source.h"
#include "convert/foreign/config_model.h"
#include "convert/foreign/open_options.h"

namespace cairn {

// Parameters, and their places in the source.
struct ConfigMapping {
  TensorTable catalog;
  std::vector<ArrayPart> parts;  // array: a tensor of the source. Of one tensor after the other
  std::map<std::string, std::vector<std::string>> parameters_of;  // by each name of the source
  std::map<std::string, std::vector<uint32_t>> left;              // tensors in no parameter, by fate
  std::vector<std::string> history;
};

// Reads what must be compared: copies of tied embeddings. Errors: those of ReadByConfig (config_source.h),
// without the source's name.
Result<ConfigMapping> MapByConfig(CheckpointSource& source, const ConfigModel& config,
                                  const OpenOptions& options);

}  // namespace cairn
