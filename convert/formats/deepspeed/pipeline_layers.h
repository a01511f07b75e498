// Which names the tensors in a pipeline's layer files have in the model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "convert/formats/deepspeed/model_file.h"

namespace cairn {

struct PipelineLayers {
  int tp = 1;                           // tensor parallel ranks
  bool megatron = false;                // the names are Megatron's
  std::map<int, std::string> prefixes;  // of the names in each layer's files
};

// Reads the layer files of the first tensor parallel rank. `models` are the model states of all model
// parallel ranks. Errors: NotFound if a layer lacks the file of a rank; NotSupported if a layer has several
// possible names; those of TorchFile::Open.
Result<PipelineLayers> NameLayers(FileSystem& fs, const DeepSpeedFiles& files,
                                  const std::vector<TorchFile>& models);

}  // namespace cairn
