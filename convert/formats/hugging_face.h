// A Hugging Face model directory: config.json beside model.safetensors, or its shards and their index.
#pragma once

#include "convert/formats/formats.h"

namespace cairn {

// A directory with config.json and weights, or one safetensors file with config.json beside it.
bool IsHuggingFace(FileSystem& fs, const std::string& path);

// Weights in the order that transformers prefers: model.safetensors, then model.safetensors.index.json.
// Errors: NotSupported for pickled weights; those of OpenStoredModel and ReadSafetensorsHeader; Corrupt where
// index and files disagree.
Result<std::unique_ptr<CheckpointSource>> OpenHuggingFace(FileSystem& fs, const std::string& path,
                                                          const OpenOptions& options);

}  // namespace cairn
