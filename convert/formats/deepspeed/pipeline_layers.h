// Which names the tensors in a pipeline's layer files have in the model.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert/formats/deepspeed/model_file.h"

namespace cairn {

// A name that counts the layers of the whole model: "3.input_layernorm.weight".
struct PipelineName {
  int layer = 0;
  std::string rest;
};
std::optional<PipelineName> ParsePipelineName(const std::string& name);

// The shapes of tensors by name.
using Shapes = std::map<std::string, Dims>;

// True if `path` is a step, or a run whose newest step is one, that GPT-NeoX wrote: the first transformer
// layer is the third, and the last norm is a separate layer.
bool MatchesGptNeox(FileSystem& fs, const std::string& path);

// The prefixes that turn the names in each layer into Megatron's: transformer layers have a query_key_value,
// and a final norm has no prefix at all.
std::map<int, std::string> MegatronPrefixes(const std::map<int, Shapes>& layers);

struct PipelineLayers {
  int tp = 1;                           // tensor parallel ranks
  bool megatron = false;                // the names are Megatron's
  std::map<int, std::string> prefixes;  // of the names in each layer's files
};

// Reads the layer files of the first tensor parallel rank. `models` are the model states of all model
// parallel ranks. Errors: NotFound if a layer lacks the file of a rank; NotSupported if a layer has several
// possible names, and for slices of GPT-NeoX; those of TorchFile::Open.
Result<PipelineLayers> NameLayers(FileSystem& fs, const DeepSpeedFiles& files,
                                  const std::vector<TorchFile>& models);

}  // namespace cairn
