// A model that another system stored under its own names, read as canonical parameters.
//
// Independent of the container: a reader that lists the tensors of its files (safetensors, a torch pickle)
// gets a CheckpointSource. Names are taken with or without the prefix that a model without its head lacks;
// known buffers are dropped; everything else must have a place.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "convert/families/expand.h"
#include "convert/foreign/account.h"
#include "convert/foreign/open_options.h"
#include "convert/foreign/stored_source.h"

namespace cairn {

// A second copy of tied embeddings: must hold the same bytes.
struct StoredTwin {
  uint32_t array = 0;  // of the catalog
  StoredArray copy;
};

struct MappedModel {
  StoredCatalog catalog;
  std::vector<StoredTwin> twins;
  std::vector<std::string> left_out;  // names without a place that were allowed
  std::vector<StoredArray> allowed;   // the same
  std::vector<StoredArray> buffers;   // that the model computes again
};

// Pure. `allow`: globs of names that may have no place. Errors: InvalidArgument naming tensors without a
// place; NotFound naming missing ones; Corrupt naming one whose shape or dtype is not the model's, or that is
// there twice.
Result<MappedModel> MapToParameters(const Architecture& architecture, const nlohmann::json& model,
                                    const std::vector<StoredArray>& tensors, std::vector<std::string> files,
                                    const std::vector<std::string>& allow);

// A Hugging Face directory (of a family without a table: under its own names) whose weights are `tensors` in
// `files` (relative to it), listed in `account`. Reads config.json and generation_config.json. Its run is
// made from the model and the first bytes of each tensor, so that it does not depend on how the tensors are
// spread over files; its step is 0. Errors: those of MapToParameters; Corrupt, NotSupported and
// InvalidArgument of config.json; Corrupt if copies of tied embeddings differ.
Result<std::unique_ptr<ForeignSource>> OpenStoredModel(FileSystem& fs, const std::string& directory,
                                                       std::vector<std::string> files,
                                                       const std::vector<StoredArray>& tensors,
                                                       Account account, const OpenOptions& options);

// The same for a model of unknown family (an adapter, say): every tensor under its own name, cut
// nowhere. `model` goes into the manifest. Errors: NotSupported naming a tensor of a type that is not held.
Result<std::unique_ptr<ForeignSource>> OpenUnderOwnNames(FileSystem& fs, const std::string& directory,
                                                         std::vector<std::string> files,
                                                         const std::vector<StoredArray>& tensors,
                                                         Account account, nlohmann::json model,
                                                         const OpenOptions& options);

// The text that the run of a model without one is made from, beside its tensors.
std::string RunTextOf(const nlohmann::json& model);

}  // namespace cairn
