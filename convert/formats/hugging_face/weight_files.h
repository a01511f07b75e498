// A Hugging Face model directory: config.json beside model.safetensors or pytorch_model.bin, or their shards
// and index.
#pragma once

#include <map>
#include <span>

#include "convert/foreign/expert_census.h"
#include "convert/formats/hugging_face/stored_model.h"

namespace cairn {

inline constexpr const char* kSafetensorsFile = "model.safetensors";
inline constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";  // of peft
inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kPickleFile = "pytorch_model.bin";
inline constexpr const char* kPickleIndex = "pytorch_model.bin.index.json";
inline constexpr const char* kSafetensors[] = {kSafetensorsFile, kSafetensorsIndex};
inline constexpr const char* kPickles[] = {kPickleFile, kPickleIndex};

bool HasAny(FileSystem& fs, const std::string& directory, std::span<const char* const> names);

// model.safetensors.index.json and pytorch_model.bin.index.json: which file of a directory holds which
// tensor.
struct WeightIndex {
  std::map<std::string, std::string> file_of;  // by tensor; a file of the index's own directory
  std::vector<std::string> files;              // sorted, each once
};

// Errors: NotFound; Corrupt if it is not such an index, or names files elsewhere.
Result<WeightIndex> ReadWeightIndex(FileSystem& fs, const std::string& path);

// `found`: tensors and their files. Errors: Corrupt naming a tensor that the index does not list, or that is
// not in the file that the index at `path` names, and the file that has it.
Status CheckAgainstIndex(const std::string& path, const WeightIndex& index,
                         const std::vector<std::pair<std::string, std::string>>& found);

// model.safetensors, else adapter_model.safetensors, else what model.safetensors.index.json names, in the
// directory `path`; or that one file. Of a tensor that several files have, the one in the file that the index
// names is read, as transformers does; the others are left behind by name. Errors: NotFound; Corrupt naming
// an expert that is in two files; those of ReadSafetensorsHeader and CheckAgainstIndex.
Result<WeightFiles> ReadSafetensorsFiles(FileSystem& fs, const std::string& path);

// Errors: NotSupported naming a file that has one rank's part of each tensor, unless `options` allow "slice".
Status CheckNoSlice(const WeightFiles& files, ReaderOptions& options);

// A directory with config.json and weights, or one file of weights with config.json beside it.
bool IsHuggingFace(FileSystem& fs, const std::string& path);

// Weights in the order that transformers prefers: safetensors, then pickles (which are read, never run).
// Errors: those of OpenStoredModel; NotFound; Corrupt.
Result<std::unique_ptr<ForeignSource>> OpenHuggingFace(FileSystem& fs, const std::string& path,
                                                       ReaderOptions& options);

// The tensors of such a directory or file, and its config.json. Errors: NotFound; Corrupt.
Result<StoredNames> NamesOfHuggingFace(FileSystem& fs, const std::string& path);

// Checks that no shard of a numbered set or of an index is missing, and that each holds the tensors that the
// index lists. `names`: the files of `directory`.
Status CheckWeightFiles(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names);

}  // namespace cairn
