// A Hugging Face model directory: config.json beside model.safetensors or pytorch_model.bin, or shards of
// either and their index.
#pragma once

#include "convert/formats/formats.h"

namespace cairn {

// A directory with config.json and weights, or one safetensors file with config.json beside it.
bool IsHuggingFace(FileSystem& fs, const std::string& path);

// Weights in the order that transformers prefers: model.safetensors, its index, pytorch_model.bin, its index.
// Errors: those of OpenStoredModel, ReadSafetensorsHeader and ListTorchTensors; NotSupported where a pickled
// tensor is not contiguous; Corrupt where index and files disagree.
Result<std::unique_ptr<CheckpointSource>> OpenHuggingFace(FileSystem& fs, const std::string& path,
                                                          const OpenOptions& options);

}  // namespace cairn
