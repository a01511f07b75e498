// A model that another system stored under its own names, read as canonical parameters.
//
// Independent of the container: a reader that lists the tensors of its files (safetensors, a torch pickle)
// gets a CheckpointSource. Names are taken with or without the prefix that a model without its head lacks;
// known buffers are dropped; everything else must have a place.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "convert/families/expand.h"
#include "convert/foreign/account.h"
#include "convert/foreign/open_options.h"
#include "convert/foreign/stored_source.h"

namespace cairn {

// Files of weights, and what a reader found in them.
struct WeightFiles {
  std::string directory;
  std::vector<std::string> names;  // relative to it
  std::vector<StoredArray> tensors;
  std::map<std::string, std::string> metadata;  // of the first safetensors file
  Account account{};                            // of all of them
};

struct MappedModel {
  StoredCatalog catalog;
  // Tensors in no parameter: buffers, which the model computes again, names without a place that were
  // allowed, and replicas: copies of tied embeddings, which must hold the same bytes.
  std::vector<std::pair<Fate, StoredArray>> left;
};

// Pure. `allow`: globs of names that may have no place. Errors: InvalidArgument naming tensors without a
// place; NotFound naming missing ones; Corrupt naming one whose shape is not the model's, or that is there
// twice.
Result<MappedModel> MapToParameters(const Architecture& architecture, const nlohmann::json& model,
                                    const std::vector<StoredArray>& tensors, std::vector<std::string> files,
                                    const std::vector<std::string>& allow);

// A Hugging Face directory (of a family without a table: under its own names). Reads config.json and
// generation_config.json beside `files`. Its run is made from the model and the first bytes of each tensor,
// so that it does not depend on how the tensors are spread over files; its step is 0. Errors: those of
// MapToParameters; Corrupt, NotSupported and InvalidArgument of config.json; Corrupt if copies of tied
// embeddings differ.
Result<std::unique_ptr<ForeignSource>> OpenStoredModel(FileSystem& fs, WeightFiles files,
                                                       const OpenOptions& options);

// The same for a model of unknown family (an adapter, say): every tensor under its own name, cut
// nowhere. `model` goes into the manifest. Errors: NotSupported naming a tensor of a type that is not held.
Result<std::unique_ptr<ForeignSource>> OpenUnderOwnNames(FileSystem& fs, WeightFiles files,
                                                         nlohmann::json model, const OpenOptions& options);

// The text that the run of a model without one is made from, beside its tensors.
std::string RunTextOf(const nlohmann::json& model);

}  // namespace cairn
