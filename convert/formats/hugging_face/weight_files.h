// The files of a model directory that hold its weights: one, or those that an index names.
#pragma once

#include <map>

#include "convert/foreign/stored_model.h"

namespace cairn {

inline constexpr const char* kSafetensorsFile = "model.safetensors";
inline constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";  // of peft
inline constexpr const char* kPickleFile = "pytorch_model.bin";
inline constexpr const char* kPickleIndex = "pytorch_model.bin.index.json";

struct WeightFiles {
  std::string directory;
  std::vector<std::string> names;  // relative to it
  std::vector<StoredArray> tensors;
  std::map<std::string, std::string> metadata;  // of the first safetensors file
  Account account{};                            // of all of them
};

// model.safetensors, else adapter_model.safetensors, else what model.safetensors.index.json names, in the
// directory `path`; or that one file. Errors: NotFound; those of ReadSafetensorsHeader; Corrupt if index
// and files disagree.
Result<WeightFiles> ReadSafetensorsFiles(FileSystem& fs, const std::string& path);

// The same of pytorch_model.bin, whose pickles are read without being run.
Result<WeightFiles> ReadPickledFiles(FileSystem& fs, const std::string& path);

// Checks that no shard of a numbered set or of an index is missing, and that each holds the tensors that the
// index lists. `names`: the files of `directory`.
Status CheckWeightFiles(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names);

}  // namespace cairn
