// A Hugging Face model directory: config.json beside model.safetensors or pytorch_model.bin, or their shards
// and index.
#pragma once

#include "convert/foreign/open_options.h"

namespace cairn {

// A directory with config.json and weights, or one file of weights with config.json beside it.
bool IsHuggingFace(FileSystem& fs, const std::string& path);

// Weights in the order that transformers prefers: safetensors, then pickles (which are read, never run).
// Errors: those of OpenStoredModel and weight_files.h.
Result<std::unique_ptr<ForeignSource>> OpenHuggingFace(FileSystem& fs, const std::string& path,
                                                       ReaderOptions& options);

}  // namespace cairn
