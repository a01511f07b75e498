// A checkpoint under Hugging Face's names, read as the canonical parameters of the model that a config.json
// describes.
//
// A checkpoint that FSDP, DeepSpeed or cairn.torch saved of a transformers model uses the names of its
// modules and does not state which model it is. With its config.json it can be resharded and converted to
// every format: weights, masters and the optimizer's states. Other values that the training kept under its
// own names (of a state dict, random states) are then dropped; the account lists them.
#pragma once

#include <memory>

#include "convert/foreign/open_options.h"
#include "convert/formats/hugging_face/config_mapping.h"

namespace cairn {

// `given`: a config.json, or the directory that it is in. Errors: those of ReadConfigModel.
Result<ConfigModel> ReadConfigAt(FileSystem& fs, const std::string& given);
// The model of `options.config`; `history` gets a line. Errors: NotSupported if the family has no table;
// those of ReadConfigModel.
Result<ConfigModel> ReadConfigGiven(FileSystem& fs, const OpenOptions& options,
                                    std::vector<std::string>& history);
// True if such a line is in a history.
bool IsReadByConfig(const nlohmann::json& history);

// A model of a family without a table keeps its names, those of its files or of memory
// (options.names_in_memory).
// Errors: those of ReadConfigGiven but for such a family; NotSupported if a state's shape cannot be cut;
// InvalidArgument if names are unknown; NotFound naming the missing tensors; Corrupt naming a tensor of
// another shape, or copies of tied embeddings that differ.
Result<std::unique_ptr<ForeignSource>> ReadByConfig(FileSystem& fs, std::unique_ptr<CheckpointSource> source,
                                                    const OpenOptions& options);

// The source's tensors as parameters, by a mapping of its catalog. `history`: what the manifest's gets in
// addition. Errors: Corrupt if copies of tied embeddings differ.
Result<std::unique_ptr<ForeignSource>> ReadMapped(std::unique_ptr<CheckpointSource> source,
                                                  ConfigMapping mapped, ConfigModel config,
                                                  const OpenOptions& options,
                                                  std::vector<std::string> history = {});

// Errors: Corrupt naming both and what to do, if the copy differs.
Status CheckTied(CheckpointSource& source, uint32_t original, uint32_t copy, const std::string& config);

}  // namespace cairn
